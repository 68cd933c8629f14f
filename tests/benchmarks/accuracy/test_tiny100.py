"""The plan on 100 classes, carried out: a quick run that is killed and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.tiny100.plan import FULL, QUICK, trial_cells
from benchmarks.accuracy.tiny100.run import BUSY, Place, do_task, left
from benchmarks.readme import parts
from benchmarks.readme.accuracy100 import accuracy100
from benchmarks.readme.verdicts import student_rows
from tests.benchmarks.accuracy.made_results import made_record, quick_store

# Students are trained for real, in seconds of their own, but on a busy machine these can be minutes.
pytestmark = pytest.mark.timeout(900)


def test_a_task_that_another_process_does_is_left_alone(tmp_path: Path) -> None:
    place = Place(store=quick_store(tmp_path / "results.json"), work=tmp_path / "work")
    task = trial_cells(QUICK)[0]
    (tmp_path / "work" / "locks").mkdir(parents=True)
    (lock,) = {name for name in _locks_taken(place, task) if name.startswith("task-")}
    with FileLock(tmp_path / "work" / "locks" / lock):
        assert do_task(QUICK, place, task) == BUSY
    assert not place.store.path.exists()


def _locks_taken(place: Place, task: Cell) -> set[str]:
    """Return the lock files of a task that is found done."""
    place.store.add(task, replace(made_record(task, 0.5), scale=QUICK.scale.as_json()))
    assert do_task(QUICK, place, task) == "was done by another process"
    place.store.path.unlink()
    return {path.name for path in (place.work / "locks").iterdir()}


def test_results_of_another_scale_are_refused(tmp_path: Path) -> None:
    store = quick_store(tmp_path / "results.json")
    cell = trial_cells(QUICK)[0]
    store.add(cell, replace(made_record(cell, 0.5), scale=QUICK.scale.as_json()))
    with pytest.raises(SystemExit, match="another scale"):
        replace(store, scale=FULL.scale).read()


def _command(folder: Path, *more: str) -> list[str]:
    words = ["--scale", "tiny100", "--quick", "--allow-dirty", "--work", str(folder / "work")]
    words += ["--results", str(folder / "results.json"), *more]
    return [sys.executable, "-m", "benchmarks.accuracy", *words]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, project: Path) -> tuple[dict[str, Any], Path]:
    """Kill a quick run as soon as it has finished something, go on, and return what was there at the kill."""
    folder = tmp_path_factory.mktemp("tiny100")
    results = folder / "results.json"
    words = _command(folder, "--groups", "a,b,c", "--workers", "2")
    with subprocess.Popen(words, cwd=project, stderr=subprocess.DEVNULL) as process:
        while not results.exists():
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    before = json.loads(results.read_text())
    subprocess.run([*words, "--png", str(folder / "chart.png")], cwd=project, check=True, capture_output=True)
    return before, folder


def test_a_killed_run_goes_on_where_it_stopped(run: tuple[dict[str, Any], Path]) -> None:
    before, folder = run
    store = quick_store(folder / "results.json")
    after = json.loads((folder / "results.json").read_text())["results"]
    kept = before["results"]["cells"]
    assert 0 < len(kept) < len(after["cells"])
    assert after["cells"][: len(kept)] == kept
    assert left(QUICK, store, ("a", "b", "c")) == []
    # Nothing lies about: pools and checkpoints of single cells are gone.
    assert list((folder / "work" / "tiny100-quick" / "cells").iterdir()) == []


def test_cells_say_what_they_are_of(run: tuple[dict[str, Any], Path]) -> None:
    _, folder = run
    document = json.loads((folder / "results.json").read_text())
    results = document["results"]
    assert "allow-dirty" not in document["command"]
    for cell in results["cells"]:
        assert cell["commit"]
        assert cell["steps"] > 0
        assert cell["seconds"] > 0
        assert 0 <= cell["top1"] <= 1
    klt = [cell for cell in results["cells"] if cell["codec"] == "klt"]
    f16 = [cell for cell in results["cells"] if cell["codec"] == "f16" and cell["ratio"] == 2]
    limit = {cell["seed"]: cell["bytes"] for cell in f16 if cell["method"] == "lpld"}
    assert klt
    assert all(cell["bytes"] <= limit[cell["seed"]] for cell in klt)
    assert results["decisions"]["teacher"] in ("plain", "smoothed")
    assert results["machine_seconds"]["teachers"] > 0
    assert (folder / "chart.png").stat().st_size > 10_000


def test_status_of_a_run(run: tuple[dict[str, Any], Path], project: Path) -> None:
    _, folder = run
    words = _command(folder, "--status")
    text = subprocess.run(words, cwd=project, check=True, capture_output=True, text=True).stdout
    assert "Policies" in text
    assert "decided: Decisions(teacher=" in text


def test_the_readme_has_a_section_as_soon_as_there_are_results(
    run: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = run
    assert list(accuracy100(parts.Results(folder))) == []
    (folder / "accuracy_tiny100.json").write_bytes((folder / "results.json").read_bytes())
    row = parts.MappedClaim(commands=("the command",), results=("accuracy_tiny100.json",))
    monkeypatch.setattr(parts, "claim_map", lambda: [row])
    text = "\n".join(accuracy100(parts.Results(folder)))
    assert "| lpld, ILP, klt" in text
    assert any("costs little" in claim for claim, *_ in student_rows(parts.Results(folder)))
    assert "`the command`, [accuracy_tiny100.json]" in text
