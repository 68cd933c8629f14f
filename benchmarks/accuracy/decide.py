"""Decisions for the rest of the plan, and their reasons: a pure function of the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.plan import TEACHERS, Decisions, Plan, tasks, trial_cells
from benchmarks.accuracy.settle import checks_wanted, enough_iterations
from benchmarks.accuracy.store import Results


def decisions(plan: Plan, results: Results) -> Decisions:
    """Return the decisions made so far."""
    teacher = chosen_teacher(plan, results)
    if teacher is None:
        return Decisions()
    iterations, _ = enough_iterations(plan, results.checks, teacher)
    checks = checks_wanted(plan, results.checks, teacher)
    decided = Decisions(teacher=teacher, iterations=iterations, checks=checks)
    if iterations is None:
        return decided
    candidates = [
        task for _, task in tasks(plan, decided, ("c", "c2")) if isinstance(task, Cell) and task.seed == 0
    ]
    klt, topk = {}, {}
    for budget in plan.budgets:
        here = [cell for cell in candidates if cell.ratio == budget]
        best = _best(results, [cell for cell in here if cell.codec == "klt"])
        if best is not None and best.fidelity is not None:
            klt[budget] = best.fidelity
        best = _best(results, [cell for cell in here if cell.codec.startswith("topk")])
        if best is not None:
            topk[budget] = best.codec
    return replace(decided, klt=klt, topk=topk)


def chosen_teacher(plan: Plan, results: Results) -> str | None:
    """Return the teacher whose students are better on average; None while students are missing."""
    means = _trial_means(plan, results)
    if any(mean is None for mean in means.values()):
        return None
    return max(TEACHERS, key=lambda teacher: means[teacher] or 0.0)


def _trial_means(plan: Plan, results: Results) -> dict[str, float | None]:
    found = {}
    for teacher in TEACHERS:
        cells = [cell for cell in trial_cells(plan) if cell.teacher == teacher]
        top1 = [results.records[cell.key].top1 for cell in cells if cell.key in results.records]
        found[teacher] = float(np.mean(top1)) if len(top1) == len(cells) else None
    return found


def _best(results: Results, cells: Sequence[Cell]) -> Cell | None:
    """Return the cell with the best student; None while one of them is neither trained nor refused."""
    if not all(cell.key in results.done for cell in cells):
        return None
    trained = [cell for cell in cells if cell.key in results.records]
    return max(trained, key=lambda cell: results.records[cell.key].top1, default=None)


def explained(plan: Plan, results: Results) -> dict[str, Any]:
    """Return the decisions with their reasons, as JSON values."""
    decided = decisions(plan, results)
    reason = "teachers are not chosen yet"
    if decided.teacher is not None:
        _, reason = enough_iterations(plan, results.checks, decided.teacher)
    return {
        "teacher": decided.teacher,
        "teacher_students": {name: _rounded(mean) for name, mean in _trial_means(plan, results).items()},
        "iterations": decided.iterations,
        "iterations_because": reason,
        "checks": [
            {**asdict(check), **asdict(result)}
            for check, result in sorted(results.checks.items(), key=lambda item: item[0].key)
        ],
        "klt_fidelity": _by_budget(decided.klt.items()),
        "topk": _by_budget(decided.topk.items()),
    }


def _by_budget(items: Iterable[tuple[float, object]]) -> dict[str, object]:
    return {f"f16 at {budget:g}x": value for budget, value in items}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
