from functools import partial
from pathlib import Path

from benchmarks.accuracy.cells import Cell, Record
from benchmarks.accuracy.plan import QUICK
from benchmarks.accuracy.report import derived
from benchmarks.accuracy.store import Store


def quick_store(path: Path) -> Store:
    return Store(path=path, scale=QUICK.scale, command="x", derived=partial(derived, QUICK, path.parent))


def made_record(cell: Cell, top1: float) -> Record:
    facts = {"bytes": 1000, "rows": 100, "batches": 1, "steps": 3000, "seconds": 600.0, "commit": "abc1234"}
    return Record(cell=cell, top1=top1, top5=top1, **facts)  # type: ignore[arg-type]
