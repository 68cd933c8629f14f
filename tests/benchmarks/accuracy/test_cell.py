"""One cell: what its pool keeps, and how long its student is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy.cell import prune_settings
from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.tiny100.plan import FULL, QUICK, trial_cells
from benchmarks.accuracy.tiny100.run import Place, do_task
from benchmarks.accuracy.tiny100.store import Store
from lpld_core.train.trainer import Trainer
from lpld_labels.transforms.prune import kept_count
from tests.benchmarks.accuracy.made_results import quick_store


@pytest.mark.parametrize(("ratio", "epochs"), [(1, 300), (10, 30), (20, 15), (30, 10), (40, 8), (7, 43)])
def test_epochs_are_kept_whole(ratio: float, epochs: int) -> None:
    settings = prune_settings(FULL.scale, Cell(method="lpld", ratio=ratio, pool="epochs"))
    assert settings.ratio is not None
    assert kept_count(3000, settings.ratio) == 10 * epochs
    assert prune_settings(FULL.scale, Cell(method="lpld", ratio=ratio)).ratio == ratio


def test_a_student_is_there_until_its_result_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(store=quick_store(tmp_path / "results.json"), work=tmp_path / "work")
    task = replace(trial_cells(QUICK)[0], epochs=1)

    def full_disk(self: Store, task: object, outcome: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "add", full_disk)
        with pytest.raises(OSError, match="no space"):
            do_task(QUICK, place, task)
    (student,) = (tmp_path / "work" / "cells").glob("*/student.safetensors")

    def trained_again(self: Trainer, *arguments: object, **settings: object) -> None:
        raise AssertionError("it was trained already")

    monkeypatch.setattr(Trainer, "run_epoch", trained_again)
    do_task(QUICK, place, task)
    assert task.key in place.store.read().done
    assert not student.exists()
