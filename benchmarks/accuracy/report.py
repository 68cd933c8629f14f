"""The report of the finished cells: rows, claims, decisions, machine time, and the tasks left."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.cells import Cell, Record
from benchmarks.accuracy.claims import claims
from benchmarks.accuracy.decide import decisions, explained
from benchmarks.accuracy.kept import DATA, SECONDS, teacher_facts
from benchmarks.accuracy.noise import pooled_noise
from benchmarks.accuracy.plan import GROUPS, TEACHERS, Plan, Task, tasks
from benchmarks.accuracy.rows import gathered, row_entries, variant_name
from benchmarks.accuracy.stopwatch import read_seconds
from benchmarks.accuracy.store import Results

SECONDS_PER_STEP = 0.19
"""Processor time of a student, as a first guess."""
HEADINGS = {
    "a": "Teachers, judged by students of real images",
    "b": "Class-wise and cross-class images, label batches drawn from all (ILP)",
    "c": "Codecs in the same bytes: those of f16 at this ratio",
    "d": "Policies",
    "d2": "Temperatures",
    "metrics": "Pruning by metrics",
    "settled": "Iterations of recovery",
    "b2": "More ratios, and whole epochs",
    "c2": "Codecs in other bytes",
    "real": "Random real images and lpld, in the bytes of f16 at this ratio",
    "teacher": "The teacher in place of labels: every epoch is labelled anew",
    "phases": "Soft-hard-soft training and a falling temperature",
    "others": "Other codecs in the same bytes, as baselines",
    "e": "Other images, CutMix, more images per class",
    "f": "Another student",
    "ablation": "Ablation: lpld-global has class batches with global statistics",
    "calibration": "Calibration: easy and hard batches left out before pruning at random",
}


def derived(plan: Plan, work: Path, results: Results) -> dict[str, Any]:
    """Return everything in the results file except its cells."""
    records = list(results.records.values())
    noise = pooled_noise(gathered(records))
    rows = gathered(reported(plan, records))
    groups = groups_of(plan, results)
    return {
        "teachers": _teachers(plan, work),
        "decisions": explained(plan, results),
        "noise_of_one_student": round(noise.deviation, 4),
        "noise_freedom": noise.freedom,
        "rows": row_entries(rows, lambda row: sorted(groups.get(row.cell.key, set()))),
        "choice": choice(plan, results),
        "claims": [asdict(claim) for claim in claims(plan, results, noise)],
        "image_bytes": image_bytes(plan, records),
        "machine_seconds": machine_seconds(plan, results, work),
        "status": status(plan, results),
    }


def reported(plan: Plan, records: Sequence[Record]) -> list[Record]:
    """Return the records that rows contain. A codec chosen on seed 0 is reported on the other seeds."""
    chosen = {
        record.cell.row.key
        for record in records
        if record.cell.codec != "f16" and record.cell.seed in plan.other_seeds
    }
    return [
        record
        for record in records
        if record.cell.row.key not in chosen or record.cell.seed in plan.other_seeds
    ]


def choice(plan: Plan, results: Results) -> list[dict[str, Any]]:
    """Return f16 at each ratio and the codecs tried in its bytes, all on seed 0, best first."""
    found = []
    for budget in plan.budgets:
        candidates = [
            task
            for _, task in tasks(plan, decisions(plan, results), ("b", "c", "c2"))
            if isinstance(task, Cell) and task.seed == 0 and task.ratio == budget and task.method == "lpld"
        ]
        tried = [results.records[cell.key] for cell in candidates if cell.key in results.records]
        found += [
            {
                "ratio": budget,
                "codec": record.cell.codec_name,
                "batches": record.batches,
                "bytes": record.bytes,
                "top1": round(record.top1, 4),
            }
            for record in sorted(tried, key=lambda record: -record.top1)
        ]
    return found


def _teachers(plan: Plan, work: Path) -> dict[str, dict[str, Any]]:
    """Return facts about the teachers in the work directory or in the repository."""
    places = (work, DATA / plan.scale.dataset)
    return {
        kind: facts
        for kind in TEACHERS
        if (facts := next(filter(None, (teacher_facts(place, kind) for place in places)), None))
    }


def groups_of(plan: Plan, results: Results) -> dict[str, set[str]]:
    """Return the groups of each row, by `Cell.row.key`."""
    found: dict[str, set[str]] = {}
    decided = decisions(plan, results)
    for group in GROUPS:
        for _, task in tasks(plan, decided, (group,)):
            if isinstance(task, Cell):
                found.setdefault(task.row.key, set()).add(group)
    return found


def machine_seconds(plan: Plan, results: Results, work: Path) -> dict[str, Any]:
    """Return seconds of processor time: of students by their first group, and of everything else."""
    first = {task.key: group for group, task in tasks(plan, decisions(plan, results))}
    students: dict[str, float] = {}
    for key, record in results.records.items():
        group = first.get(key, "none")
        students[group] = round(students.get(group, 0.0) + record.seconds, 1)
    teachers = [facts["seconds"] for facts in _teachers(plan, work).values()]
    return {
        "students": students,
        "teachers": round(sum(teachers), 1),
        "checks": round(sum(check.seconds for check in results.checks.values()), 1),
        "images": round(sum(_image_seconds(plan, work).values()), 1),
        # Includes teachers and images that were missing.
        "preparing_students": round(sum(record.preparing for record in results.records.values()), 1),
    }


def _image_seconds(plan: Plan, work: Path) -> dict[str, float]:
    """Return the seconds of each folder of images in the work directory or in the repository."""
    places = (DATA / plan.scale.dataset, work / "images")
    return {path.stem: read_seconds(path) for place in places for path in place.glob(f"*{SECONDS}")}


def image_bytes(plan: Plan, records: Sequence[Record]) -> dict[str, int]:
    """Return the bytes of each method's images, by students of them, or by kept ones."""
    found: dict[str, int] = {}
    for archive in sorted((DATA / plan.scale.dataset).glob(f"*-ipc{plan.scale.ipc}-*.tar")):
        with tarfile.open(archive) as opened:
            sizes = [one.size for one in opened if one.isfile() and one.name.count("/") > 1]
        found[archive.name.partition("-ipc")[0]] = sum(sizes)
    main = [record for record in records if record.image_bytes and record.cell.ipc is None]
    return found | {record.cell.method: record.image_bytes for record in main}


def status(plan: Plan, results: Results) -> dict[str, dict[str, Any]]:
    """Return per group the numbers of tasks done and left, and the seconds of one thread for the rest."""
    done = results.done
    found: dict[str, dict[str, Any]] = {name: {"done": 0, "left": 0, "seconds": 0.0} for name in GROUPS}
    for group, task in tasks(plan, decisions(plan, results).guessed(plan)):
        finished = task.key in done
        found[group]["done" if finished else "left"] += 1
        found[group]["seconds"] += 0.0 if finished else expected_seconds(plan, results, task)
    return found


def expected_seconds(plan: Plan, results: Results, task: Task) -> float:
    """Return the expected seconds of a task, by those of finished ones, without teachers and images."""
    if not isinstance(task, Cell):
        rates = [result.seconds / check.iterations for check, result in results.checks.items()]
        return task.iterations * (float(np.median(rates)) if rates else 0.12)
    scale = plan.scale
    epochs, ipc = task.epochs or scale.epochs, task.ipc or scale.ipc
    # The last batch of an epoch may be partial.
    classes = 100 if scale.dataset == "tiny100" else 10
    steps = epochs * -(-classes * ipc // scale.batch_size)
    taken = [record.seconds / record.steps for record in results.records.values() if record.steps]
    return steps * (float(np.median(taken)) if taken else SECONDS_PER_STEP)


def show_status(plan: Plan, results: Results, *, workers: int) -> None:
    """Print the tasks done and left."""
    found = status(plan, results)
    table = Table(title=f"{plan.scale.dataset}: tasks done and left")
    for heading in ("group", "cells", "done", "left", "hours of one thread left"):
        table.add_column(heading, justify="left" if heading in ("group", "cells") else "right")
    for group, facts in found.items():
        hours = f"{facts['seconds'] / 3600:.1f}"
        table.add_row(group, HEADINGS[group], str(facts["done"]), str(facts["left"]), hours)
    console = Console(width=130)
    console.print(table)
    decided = decisions(plan, results)
    total = sum(facts["seconds"] for facts in found.values()) / 3600
    console.print(
        f"{total:.1f} hours of one thread, about {total / workers:.1f} with {workers} processes, plus "
        "missing teachers and images (up to an hour each)"
    )
    console.print(f"decided: {decided}", soft_wrap=True)
    for cell, reason in results.refused.values():
        console.print(f"refused: {cell}: {reason}", soft_wrap=True)


def show(results: dict[str, Any], groups: Sequence[str] = GROUPS) -> None:
    """Print a table per group and the claims."""
    console = Console(width=130)
    for group in groups:
        rows = [row for row in results["rows"] if group in row["groups"]]
        if rows:
            console.print(variant_table(HEADINGS[group], rows, iterations=group == "settled"))
    console.print(claim_table(results["claims"]))


def claim_table(claims: Sequence[dict[str, Any]]) -> Table:
    """Lay out claims, a line each."""
    table = Table(title="Claims of the paper, and ours")
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


def variant_table(title: str, rows: Sequence[dict[str, Any]], *, iterations: bool = False) -> Table:
    """Lay out one group: a line per variant, a column per ratio. iterations: see `variant_name`."""
    ratios = sorted({row["ratio"] for row in rows})
    variants: dict[str, dict[float, dict[str, Any]]] = {}
    for row in rows:
        variants.setdefault(variant_name(row, iterations=iterations), {})[row["ratio"]] = row
    table = Table(title=f"{title}: top-1 in %, mean +/- std (seeds)")
    table.add_column("variant")
    for ratio in ratios:
        table.add_column(f"{ratio:g}x", justify="right")
    for name, found in sorted(variants.items()):
        table.add_row(name, *(_entry(found.get(ratio)) for ratio in ratios))
    return table


def _entry(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    spread = "" if row["std"] is None else f" +/- {100 * row['std']:.1f}"
    return f"{100 * row['mean']:.1f}{spread} ({row['seeds']})"
