"""A short run of the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.demo.table import ROWS
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes


@pytest.mark.timeout(900)  # students are trained for real: seconds of their own, minutes on a busy machine
def test_the_demo_runs_the_whole_pipeline(tmp_path: Path, project: Path) -> None:
    out = tmp_path / "out"
    stale = out / "pools/lpld_1x/pool.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("left by an earlier demo")
    (out / "mine.txt").write_text("not the demo's")
    short = ("--epochs", "20", "--teacher-epochs", "1", "--iterations", "2")
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.demo.run", "--out", str(out), *short],
        cwd=project,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # other tests run beside it
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Label bytes against accuracy" in result.stdout
    assert str(out / "demo.html") in result.stdout.replace("\n", "")
    assert "Here a class has 200: 10x keeps 20 and costs" in " ".join(result.stdout.split())
    assert "lpld-labels" not in result.stderr, "commands belong in the log"
    lines = {line["key"]: line for line in json.loads((out / "table.json").read_text())["lines"]}
    assert list(lines) == ["teacher", *ROWS]
    pools = [f"{source}_{ratio}x" for source in ("lpld", "sre2l") for ratio in (1, 10, 40)]
    assert [lines[key]["batches"] for key in pools] == [40, 4, 1] * 2
    assert all(0 <= line["top1"] <= 1 for line in lines.values())
    assert (out / "mine.txt").exists()
    log = (out / "demo.log").read_text()
    times = {"squeeze": 1, "recover": 2, "build": 3, "prune": 4, "plan": 1, "train": 8}
    assert {name: log.count(f"$ lpld-labels {name} ") for name in times} == times
    page = (out / "demo.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert all(name in page for name in ROWS.values())
    with PoolReader(out / "pools/lpld_40x") as small, PoolReader(out / "pools/lpld_1x") as full:
        assert len(full.images) == 100
        for key in small.keys:
            assert (small.read_labels(key) == full.read_labels(key)).all()
        with PoolReader(out / "pools/lpld_klt") as klt:
            assert klt.codec.name == "klt"
            assert len(klt) > len(small)
            assert pool_bytes(klt.manifest) <= pool_bytes(small.manifest)
