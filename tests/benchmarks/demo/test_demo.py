"""What several runs of the demo say together; the demo itself runs in test_whole_demo.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.demo.__main__ import main, summarised
from benchmarks.demo.table import ROWS


def run(seed: int, **top1: float) -> dict[str, Any]:
    lines = [
        {
            "key": key,
            "name": name,
            "batches": 5,
            "views": 25,
            "pool_bytes": 900 + seed,
            "top1": top1.get(key, 0.5),
        }
        for key, name in ROWS.items()
    ]
    return {"seed": seed, "seconds": 9.0, "cpu_seconds": 11.0, "lines": lines}


def test_means_and_spreads_decide() -> None:
    runs = [
        run(0, real_1x=0.55, lpld_40x=0.46, lpld_klt=0.60),
        run(1, real_1x=0.53, lpld_40x=0.50, lpld_klt=0.6),
    ]
    results = summarised(runs)
    rows = {row["key"]: row for row in results["rows"]}
    assert rows["lpld_40x"]["top1_mean"] == pytest.approx(0.48)
    assert rows["lpld_40x"]["pool_bytes"] == [900, 901]
    assert [one["spread"] for one in results["findings"]] == pytest.approx([0, 0, 0, 2.83, 0])
    points = {one["claim"]: (one["points"], one["shows"]) for one in results["findings"]}
    assert points["soft labels over true classes"] == (4.0, True)
    assert points["lpld over sre2l images, labels pruned 40x"] == (-2.0, True), "within the spread"
    assert points["klt over f16 in the bytes of 40x"] == (12.0, True)
    worse = summarised([run(seed, lpld_40x=0.4) for seed in (0, 1)])
    assert [one["shows"] for one in worse["findings"]] == [False, True, True, False, True]


def test_runs_that_are_there_are_not_run_again(tmp_path: Path) -> None:
    for seed in range(2):
        folder = tmp_path / "work" / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "measured.json").write_text(json.dumps(run(seed)))
    out = tmp_path / "out.json"
    main(["--quick", "--allow-dirty", "--seeds", "2", "--work", str(tmp_path / "work"), "--json", str(out)])
    document = json.loads(out.read_text())
    assert document["results"]["seeds"] == [0, 1]
    assert document["command"].endswith("--quick")
