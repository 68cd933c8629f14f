"""The results file: one JSON document, replaced after every finished cell.

Several processes may add to it: each reads, adds and replaces it under one lock. Rows, claims and decisions
are derived from the cells and written with them, so that the file is always a complete report.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock

from benchmarks.accuracy.cells import Cell, Record, Scale
from benchmarks.accuracy.plan import RecoveryCheck
from benchmarks.accuracy.settle import CheckResult
from benchmarks.common.harness import result_document, write_whole

BENCHMARK = "accuracy_tiny100"
_CELL_FIELDS = tuple(one.name for one in fields(Cell))
_OTHER_FIELDS = tuple(one.name for one in fields(Record) if one.name != "cell")


@dataclass(frozen=True, kw_only=True)
class Results:
    """Finished tasks: records, refused cells with the reason, both by `Cell.key`, and checks."""

    records: dict[str, Record] = field(default_factory=dict)
    refused: dict[str, tuple[Cell, str]] = field(default_factory=dict)
    checks: dict[RecoveryCheck, CheckResult] = field(default_factory=dict)

    @property
    def done(self) -> set[str]:
        """Return the keys of all finished tasks."""
        return {*self.records, *self.refused, *(check.key for check in self.checks)}


Derived = Callable[[Results], dict[str, Any]]
"""Returns the rest of the document."""


@dataclass(frozen=True, kw_only=True)
class Store:
    """A results file of one scale."""

    path: Path
    scale: Scale
    command: str
    derived: Derived

    def read(self) -> Results:
        """Return the finished tasks; refuse the file of another scale."""
        if not self.path.exists():
            return Results()
        found = json.loads(self.path.read_text())["results"]
        if Scale.parse(found["scale"]) != self.scale:
            raise SystemExit(f"{self.path} holds cells of another scale: choose another --results")
        records = [_record(entry) for entry in found["cells"]]
        refused = [(Cell(**entry["cell"]), str(entry["reason"])) for entry in found["refused"]]
        return Results(
            records={record.cell.key: record for record in records},
            refused={cell.key: (cell, reason) for cell, reason in refused},
            checks=dict(_check(entry) for entry in found["decisions"]["checks"]),
        )

    def add(self, task: Cell | RecoveryCheck, outcome: Record | CheckResult | str) -> None:
        """Add the outcome of a task: a record, the result of a check, or the reason of a refusal."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            results = self.read()
            if isinstance(task, RecoveryCheck) and isinstance(outcome, CheckResult):
                results.checks[task] = outcome
            elif isinstance(task, Cell) and isinstance(outcome, Record):
                results.records[task.key] = outcome
            elif isinstance(task, Cell) and isinstance(outcome, str):
                results.refused[task.key] = (task, outcome)
            self._write(results)

    def rewrite(self) -> None:
        """Derive everything else again from the finished cells."""
        with FileLock(f"{self.path}.lock"):
            self._write(self.read())

    def _write(self, results: Results) -> None:
        body = {
            "scale": self.scale.as_json(),
            **self.derived(results),
            "cells": [_entry(record) for record in results.records.values()],
            "refused": [
                {"cell": asdict(cell), "reason": reason} for cell, reason in results.refused.values()
            ],
        }
        document = result_document(benchmark=BENCHMARK, command=self.command, results=body)
        write_whole(self.path, document)


def _entry(record: Record) -> dict[str, Any]:
    """Return one flat object: the cell's settings, then its results."""
    return {**asdict(record.cell), **{name: getattr(record, name) for name in _OTHER_FIELDS}}


def _record(entry: dict[str, Any]) -> Record:
    cell = Cell(**{name: entry[name] for name in _CELL_FIELDS if name in entry})
    return Record(cell=cell, **{name: entry[name] for name in _OTHER_FIELDS if name in entry})


def _check(entry: dict[str, Any]) -> tuple[RecoveryCheck, CheckResult]:
    check = RecoveryCheck(**{one.name: entry[one.name] for one in fields(RecoveryCheck)})
    result = {one.name: entry[one.name] for one in fields(CheckResult)}
    return check, CheckResult(**{**result, "curve": tuple(result["curve"])})
