"""Results of 100 classes that a test makes up."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.run import Record
from benchmarks.accuracy.tiny100.plan import FULL, QUICK, RecoveryCheck, trial_cells
from benchmarks.accuracy.tiny100.report import derived
from benchmarks.accuracy.tiny100.settle import CheckResult
from benchmarks.accuracy.tiny100.store import Results, Store


def quick_store(path: Path) -> Store:
    return Store(path=path, scale=QUICK.scale, command="x", derived=partial(derived, QUICK, path.parent))


def made_record(cell: Cell, top1: float) -> Record:
    return Record(
        scale=FULL.scale.as_json(),
        cell=cell,
        top1=top1,
        top5=top1,
        bytes=1000,
        rows=100,
        batches=1,
        steps=3000,
        seconds=600.0,
        commit="abc1234",
    )


def check_result(loss: float) -> CheckResult:
    return CheckResult(loss=loss, last_tenth=0.0, curve=(loss,), seconds=30.0)


def decided_results(*, losses: tuple[float, ...] = (1.0, 0.99), plain: float = 0.33) -> Results:
    """Return results in which teachers and iterations are settled."""
    results = Results()
    for cell in trial_cells(FULL):
        results.records[cell.key] = made_record(cell, plain if cell.teacher == "plain" else 0.30)
    for iterations, loss in zip(FULL.check_iterations, losses, strict=False):
        for method in ("lpld", "sre2l"):
            check = RecoveryCheck(method=method, iterations=iterations, teacher="plain")
            results.checks[check] = check_result(loss)
    return results


def add_students(
    results: Results, top1: float, *, seeds: tuple[int, ...] = (0, 1, 2), **settings: Any
) -> None:
    cell = Cell(**{"method": "lpld", "teacher": "plain", "iterations": 300, **settings})
    for seed in seeds:
        seeded = replace(cell, seed=seed)
        results.records[seeded.key] = made_record(seeded, top1 + 0.001 * seed)
