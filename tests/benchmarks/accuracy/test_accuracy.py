import json
import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest

from benchmarks.accuracy.cells import BASELINES, SHIPPED
from benchmarks.accuracy.plan import QUICK
from benchmarks.accuracy.run import left
from tests.benchmarks.accuracy.made_results import quick_store

GROUPS_RUN = "a,b,c,calibration,real,teacher,phases,others"


@pytest.mark.thorough
@pytest.mark.timeout(900)  # students are trained for real: minutes on a busy machine
def test_a_killed_run_is_resumed(tmp_path: Path, project: Path) -> None:
    path = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.accuracy", "--quick", "--allow-dirty"]
    command += ["--work", str(tmp_path / "work"), "--results", str(path)]
    words = [*command, "--groups", GROUPS_RUN, "--workers", "2"]
    with subprocess.Popen(words, cwd=project, stderr=subprocess.DEVNULL) as process:
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    kept = json.loads(path.read_text())["results"]["cells"]
    chart = tmp_path / "chart.png"
    subprocess.run([*words, "--png", str(chart)], cwd=project, check=True, capture_output=True)
    assert chart.stat().st_size > 10_000
    cells = json.loads(path.read_text())["results"]["cells"]
    assert 0 < len(kept) < len(cells)
    assert cells[: len(kept)] == kept
    assert left(QUICK, quick_store(path), tuple(GROUPS_RUN.split(","))) == []
    # Pools and checkpoints of single cells are gone.
    assert list((tmp_path / "work" / "tiny100-quick" / "cells").iterdir()) == []
    assert all(cell["commit"] and cell["steps"] > 0 and 0 <= cell["top1"] <= 1 for cell in cells)
    f16 = [cell for cell in cells if cell["codec"] == "f16" and cell["ratio"] == 2]
    limit = {cell["seed"]: cell["bytes"] for cell in f16 if cell["method"] == "lpld"}
    klt = [cell for cell in cells if cell["codec"] == "klt"]
    assert klt
    others = [cell for cell in cells if cell["codec"].startswith(BASELINES)]
    assert {cell["codec"] for cell in others} == set(QUICK.others)
    ours = [cell for cell in klt if cell["method"] == "lpld"]
    assert all(cell["bytes"] <= limit[cell["seed"]] for cell in (*ours, *others))
    # Every student takes the same steps, whatever its labels are, and there are students of every kind.
    assert len({cell["steps"] for cell in cells}) == 1
    assert {(cell["method"], cell["codec"]) for cell in cells} >= set(product(("lpld", "real"), SHIPPED))
    assert {cell["codec"] for cell in cells if cell["phases"]} == {"f16", "klt"}
    status = subprocess.run([*command, "--status"], cwd=project, check=True, capture_output=True, text=True)
    assert "decided: Decisions(teacher=" in status.stdout
