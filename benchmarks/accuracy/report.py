"""From finished cells to tables, and to a verdict on each claim of the paper at this scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.cells import Scale
from benchmarks.accuracy.claims import Row, Rows, claims
from benchmarks.accuracy.facts import teacher_facts
from benchmarks.accuracy.noise import pooled_noise
from benchmarks.accuracy.plan import GROUPS
from benchmarks.accuracy.run import Record


def report(scale: Scale, records: Sequence[Record], *, work: Path) -> dict[str, Any]:
    """Return rows (mean and spread over seeds), how long they took, and the claims."""
    rows = gathered(records)
    noise = pooled_noise(rows).deviation
    return {
        "scale": scale.as_json(),
        "teacher": teacher_facts(work),
        "students": len(records),
        "training_seconds": {
            "sum": round(sum(record.seconds for record in records)),
            "median_per_student": float(np.median([record.seconds for record in records])) if records else 0,
        },
        "noise_of_one_student": round(noise, 4),
        "rows": row_entries(rows, lambda row: _groups_of(row, scale)),
        "claims": [asdict(claim) for claim in claims(rows, noise)],
    }


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


def _groups_of(row: Row, scale: Scale) -> list[str]:
    return [name for name, cells in GROUPS.items() if row.cell.key in {cell.key for cell in cells(scale)}]


def show(results: dict[str, Any]) -> None:
    """Print a table per group and the claims."""
    console = Console(width=130)
    scale, teacher = results["scale"], results["teacher"]
    console.print(
        f"{scale['dataset']}, {scale['size']} px, {scale['network']}, IPC {scale['ipc']}, "
        f"{scale['epochs']} epochs of batches of {scale['batch_size']}"
        + (f"; teacher {teacher['top1']:.1%}" if teacher else "")
    )
    for group in GROUPS:
        rows = [row for row in results["rows"] if group in row["groups"]]
        if rows:
            console.print(variant_table(group, rows))
    console.print(claim_table(results["claims"]))
    seconds = results["training_seconds"]
    console.print(
        f"{results['students']} students, {seconds['sum'] / 60:.0f} minutes of training in all, "
        f"median {seconds['median_per_student']:.0f} s each"
    )


def claim_table(claims: Sequence[dict[str, Any]]) -> Table:
    """Lay out claims, a line each."""
    table = Table(title="Claims of the paper, and ours, at this scale")
    for heading in ("claim", "verdict", "difference", "2 s.e.", "detail"):
        table.add_column(heading, overflow="fold")
    for claim in claims:
        table.add_row(
            claim["claim"],
            claim["verdict"],
            f"{100 * claim['difference']:+.1f}",
            f"{100 * claim['two_errors']:.1f}",
            claim["detail"],
        )
    return table


def variant_table(group: str, rows: Sequence[dict[str, Any]], *, iterations: bool = False) -> Table:
    """Lay out one group: a line per variant, a column per ratio. iterations: see `variant_name`."""
    ratios = sorted({row["ratio"] for row in rows})
    variants: dict[str, dict[float, dict[str, Any]]] = {}
    for row in rows:
        variants.setdefault(variant_name(row, iterations=iterations), {})[row["ratio"]] = row
    table = Table(title=f"{group}: top-1 in %, mean +/- std (seeds)")
    table.add_column("variant")
    for ratio in ratios:
        table.add_column(f"{ratio:g}x", justify="right")
    for name, found in sorted(variants.items()):
        table.add_row(name, *(_entry(found.get(ratio)) for ratio in ratios))
    return table


def variant_name(row: dict[str, Any], *, iterations: bool = False) -> str:
    """Name everything about a row but its ratio, and the iterations of recovery only if they are asked for.

    row: of a report, old ones may lack newer settings.
    """
    pool = "ILP" if row["pool"] == "batches" else "epochs"
    parts = [row["method"], row.get("policy") or pool]
    parts += [f"IPC {row['ipc']}"] if row["ipc"] else []
    parts += [f"{row['by']} {row['prefer']}"] if row["prefer"] else []
    if row["drop_easy"] or row["drop_hard"]:
        parts.append(f"easy -{row['drop_easy']:.0%} hard -{row['drop_hard']:.0%}")
    fidelity = row.get("fidelity")
    parts += [row["codec"] + (f" {fidelity:g}" if fidelity else "")] if row["codec"] != "f16" else []
    parts += ["two teachers, MSE+GT"] if row["loss"] != "kl" else []
    parts += [row["student"]] if row["student"] else []
    parts += [row["mix"]] if row.get("mix") else []
    parts += [f"schedule {row['temperature_schedule']}"] if row.get("temperature_schedule") else []
    parts += [f"student's T {row['student_temperature']}"] if row.get("student_temperature") else []
    parts += ["plain teacher"] if row.get("teacher") == "plain" else []
    parts += [f"{row['iterations']} iterations"] if iterations else []
    return ", ".join(parts)


def _entry(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    spread = "" if row["std"] is None else f" +/- {100 * row['std']:.1f}"
    return f"{100 * row['mean']:.1f}{spread} ({row['seeds']})"
