"""What the finished cells of tiny100 say: rows, claims, decisions, machine time, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.facts import teacher_facts
from benchmarks.accuracy.kept import DATA, SECONDS
from benchmarks.accuracy.noise import pooled_noise
from benchmarks.accuracy.report import claim_table, gathered, row_entries, variant_table
from benchmarks.accuracy.run import Record
from benchmarks.accuracy.stopwatch import read_seconds
from benchmarks.accuracy.tiny100.claims import claims
from benchmarks.accuracy.tiny100.decide import decisions, explained
from benchmarks.accuracy.tiny100.plan import GROUPS, TEACHERS, Plan, Task, tasks
from benchmarks.accuracy.tiny100.store import Results

SECONDS_PER_STEP = 0.19
"""Of a student's processor time, before any was measured: 3,000 steps took 8 to 11 minutes."""
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
    "e": "Other images, CutMix, more images per class",
    "f": "Another student",
}


def derived(plan: Plan, work: Path, results: Results) -> dict[str, Any]:
    """Return what the results file says beside its cells."""
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
        "machine_seconds": machine_seconds(plan, results, work),
        "status": status(plan, results),
    }


def reported(plan: Plan, records: Sequence[Record]) -> list[Record]:
    """Return what rows are made of: of a codec that was chosen on seed 0, the other seeds alone."""
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
    """Return f16 at a ratio and the codecs that were tried in its bytes, all on seed 0, best first."""
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
    """Return what is known of the teachers, also where only what is kept of them is at hand."""
    places = (work, DATA / plan.scale.dataset)
    return {
        kind: facts
        for kind in TEACHERS
        if (facts := next(filter(None, (teacher_facts(place, kind) for place in places)), None))
    }


def groups_of(plan: Plan, results: Results) -> dict[str, set[str]]:
    """Return the groups in which a row, by the key its seeds share, is planned."""
    found: dict[str, set[str]] = {}
    decided = decisions(plan, results)
    for group in GROUPS:
        for _, task in tasks(plan, decided, (group,)):
            if isinstance(task, Cell):
                found.setdefault(task.row.key, set()).add(group)
    return found


def machine_seconds(plan: Plan, results: Results, work: Path) -> dict[str, Any]:
    """Return seconds of processor time: of students by the group that asked first, and of all else."""
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
        # With the teachers and images that were missing.
        "preparing_students": round(sum(record.preparing for record in results.records.values()), 1),
    }


def _image_seconds(plan: Plan, work: Path) -> dict[str, float]:
    """Return what folders of images took, also where only what is kept of them is at hand."""
    places = (DATA / plan.scale.dataset, work / "images")
    return {path.stem: read_seconds(path) for place in places for path in place.glob(f"*{SECONDS}")}


def status(plan: Plan, results: Results) -> dict[str, dict[str, Any]]:
    """Return per group what is done and left, and the seconds of one thread that the rest will take."""
    done = results.done
    found: dict[str, dict[str, Any]] = {name: {"done": 0, "left": 0, "seconds": 0.0} for name in GROUPS}
    for group, task in tasks(plan, decisions(plan, results).guessed(plan)):
        finished = task.key in done
        found[group]["done" if finished else "left"] += 1
        found[group]["seconds"] += 0.0 if finished else expected_seconds(plan, results, task)
    return found


def expected_seconds(plan: Plan, results: Results, task: Task) -> float:
    """Return how long a task will take by what others took, without teachers and images."""
    if not isinstance(task, Cell):
        rates = [result.seconds / check.iterations for check, result in results.checks.items()]
        return task.iterations * (float(np.median(rates)) if rates else 0.12)
    scale = plan.scale
    epochs, ipc = task.epochs or scale.epochs, task.ipc or scale.ipc
    # All images in full batches; what is left over of an epoch is one more step.
    classes = 100 if scale.dataset == "tiny100" else 10
    steps = epochs * -(-classes * ipc // scale.batch_size)
    taken = [record.seconds / record.steps for record in results.records.values() if record.steps]
    return steps * (float(np.median(taken)) if taken else SECONDS_PER_STEP)


def show_status(plan: Plan, results: Results, *, workers: int) -> None:
    """Print what is done and left."""
    found = status(plan, results)
    table = Table(title=f"{plan.scale.dataset}: what is done and left")
    for heading in ("group", "what", "done", "left", "hours of one thread left"):
        table.add_column(heading, justify="left" if heading in ("group", "what") else "right")
    for group, facts in found.items():
        hours = f"{facts['seconds'] / 3600:.1f}"
        table.add_row(group, HEADINGS[group], str(facts["done"]), str(facts["left"]), hours)
    console = Console(width=130)
    console.print(table)
    decided = decisions(plan, results)
    total = sum(facts["seconds"] for facts in found.values()) / 3600
    console.print(
        f"{total:.1f} hours of one thread, about {total / workers:.1f} with {workers} processes, and what "
        "teachers (most of an hour each) and images take"
    )
    console.print(f"decided: {decided}", soft_wrap=True)
    for cell, reason in results.refused.values():
        console.print(f"cannot be had: {cell}: {reason}", soft_wrap=True)


def show(results: dict[str, Any], groups: Sequence[str] = GROUPS) -> None:
    """Print a table per group and the claims."""
    console = Console(width=130)
    for group in groups:
        rows = [row for row in results["rows"] if group in row["groups"]]
        if rows:
            console.print(variant_table(HEADINGS[group], rows, iterations=group == "settled"))
    console.print(claim_table(results["claims"]))
