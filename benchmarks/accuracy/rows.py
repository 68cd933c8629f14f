"""Rows of the tables: the mean and spread over the students that differ only by their seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.accuracy.cells import Cell, Record


@dataclass(frozen=True, kw_only=True)
class Row:
    """All seeds of one setting. top1: one per seed. bytes, rows, steps: of the last seed's pool and run."""

    cell: Cell
    top1: tuple[float, ...]
    bytes: int
    rows: int
    steps: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.top1))

    @property
    def std(self) -> float:
        return float(np.std(self.top1, ddof=1)) if len(self.top1) > 1 else 0.0


Rows = dict[str, Row]
"""By `Cell.row.key`."""


def gathered(records: Sequence[Record]) -> Rows:
    """Return rows by the settings that their seeds share."""
    found: Rows = {}
    for record in sorted(records, key=lambda record: (record.cell.row.key, record.cell.seed)):
        key = record.cell.row.key
        before = found.get(key)
        found[key] = Row(
            cell=record.cell.row,
            top1=(*(before.top1 if before else ()), record.top1),
            bytes=record.bytes,
            rows=record.rows,
            steps=record.steps,
        )
    return found


def row_entries(rows: Rows, groups_of: Callable[[Row], list[str]]) -> list[dict[str, Any]]:
    """Return rows as JSON values."""
    return [
        {
            "groups": groups_of(row),
            **{name: value for name, value in asdict(row.cell).items() if name != "seed"},
            "seeds": len(row.top1),
            "top1": [round(value, 4) for value in row.top1],
            "mean": round(row.mean, 4),
            "std": round(row.std, 4) if len(row.top1) > 1 else None,
            "bytes": row.bytes,
            "labels": row.rows,
            "steps": row.steps,
        }
        for row in rows.values()
    ]


def variant_name(row: dict[str, Any], *, iterations: bool = False) -> str:
    """Name the settings of a row of the results, without its ratio.

    iterations: include the iterations of recovery.
    """
    pool = "ILP" if row["pool"] == "batches" else "epochs"
    parts = [row["method"], row["policy"] or pool]
    parts += [f"IPC {row['ipc']}"] if row["ipc"] else []
    parts += [f"{row['by']} {row['prefer']}"] if row["prefer"] else []
    if row["drop_easy"] or row["drop_hard"]:
        parts.append(f"easy -{row['drop_easy']:.0%} hard -{row['drop_hard']:.0%}")
    fidelity = row["fidelity"]
    parts += [row["codec"] + (f" {fidelity:g}" if fidelity else "")] if row["codec"] != "f16" else []
    parts += [row["student"]] if row["student"] else []
    parts += [row["mix"]] if row["mix"] else []
    parts += [f"schedule {row['temperature_schedule']}"] if row["temperature_schedule"] else []
    parts += [f"student's T {row['student_temperature']}"] if row["student_temperature"] else []
    parts += ["soft-hard-soft"] if row["phases"] else []
    parts += ["plain teacher"] if row["teacher"] == "plain" else []
    parts += [f"{row['iterations']} iterations"] if iterations else []
    return ", ".join(parts)
