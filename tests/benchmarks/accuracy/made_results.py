"""Results of 100 classes that a test makes up."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.run import Record
from benchmarks.accuracy.tiny100.plan import FULL, QUICK
from benchmarks.accuracy.tiny100.report import derived
from benchmarks.accuracy.tiny100.store import Store


def quick_store(path: Path) -> Store:
    return Store(path=path, scale=QUICK.scale, command="x", derived=partial(derived, QUICK, path.parent))


def made_record(cell: Cell, top1: float) -> Record:
    facts = {"bytes": 1000, "rows": 100, "batches": 1, "steps": 3000, "seconds": 600.0, "commit": "abc1234"}
    return Record(scale=FULL.scale.as_json(), cell=cell, top1=top1, top5=top1, **facts)  # type: ignore[arg-type]
