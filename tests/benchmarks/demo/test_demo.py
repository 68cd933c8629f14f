"""What the demo's table and several runs say; test_whole_demo.py runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.demo.__main__ import main, summarised
from benchmarks.demo.run import Demo, train_on_true_classes
from benchmarks.demo.table import ROWS, findings


def run(seed: int, **top1: float) -> dict[str, Any]:
    facts = {"batches": 5, "views": 25, "pool_bytes": 900 + seed}
    lines = [{"key": key, "name": name, "top1": top1.get(key, 0.5), **facts} for key, name in ROWS.items()]
    return {"seed": seed, "seconds": 9.0, "cpu_seconds": 11.0, "lines": lines}


def test_means_and_spreads_decide() -> None:
    first = run(0, real_1x=0.55, lpld_40x=0.46, lpld_klt=0.60)
    results = summarised([first, run(1, real_1x=0.53, lpld_40x=0.50, lpld_klt=0.6)])
    rows = {row["key"]: row for row in results["rows"]}
    assert rows["lpld_40x"]["top1_mean"] == pytest.approx(0.48)
    assert rows["lpld_40x"]["pool_bytes"] == [900, 901]
    points = {one["claim"]: (one["points"], one["shows"]) for one in results["findings"]}
    assert points["soft labels over true classes"] == (4.0, True)
    assert points["lpld over sre2l images, labels pruned 40x"] == (-2.0, True), "within the spread"
    assert points["klt over f16 in the bytes of 40x"] == (12.0, True)
    worse = summarised([run(seed, lpld_40x=0.4) for seed in (0, 1)])
    assert [one["shows"] for one in worse["findings"]] == [False, True, True, False, True]


def test_a_claim_that_does_not_show_says_so() -> None:
    top1 = {**dict.fromkeys(ROWS, 0.5), "real_1x": 0.53, "sre2l_10x": 0.51, "lpld_klt": 0.54}
    assert [found.shows for found in findings(top1)] == [True, True, False, True, False]
    assert findings(top1)[-1].text == "klt over f16 in the bytes of 40x: +4.0 points; does not show here"
    scattered = findings(top1, {"lpld_10x": 0.015, "sre2l_10x": 0.002})[2]
    assert scattered.text.endswith("-1.0 points; no difference, runs scatter by 1.5")
    missing = findings({**top1, "lpld_klt": None})[-1]
    assert not missing.shows
    assert "do not fit at this size" in missing.text


def test_runs_that_are_there_are_not_run_again(tmp_path: Path) -> None:
    for seed in range(2):
        folder = tmp_path / "work" / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "measured.json").write_text(json.dumps(run(seed)))
    out = tmp_path / "out.json"
    main(["--quick", "--allow-dirty", "--seeds", "2", "--work", str(tmp_path / "work"), "--json", str(out)])
    assert json.loads(out.read_text())["results"]["seeds"] == [0, 1]


def test_the_seed_reaches_what_learns_from_true_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Any] = []
    train = "lpld_core.train.train_teacher.train_teacher"
    monkeypatch.setattr(train, lambda images, job, **rest: jobs.append(job))
    monkeypatch.setattr("lpld_core.train.evaluate.ValidationSet", lambda *where, **size: None)
    train_on_true_classes(Demo(out=tmp_path, seed=7, epochs=1, teacher_epochs=1, iterations=1))
    assert [job.recipe.seed for job in jobs] == [7]
