"""Whether recovery has settled, judged by students of fewer iterations."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.noise import Noise
from benchmarks.accuracy.tiny100 import chart
from benchmarks.accuracy.tiny100.claims import claims
from benchmarks.accuracy.tiny100.decide import decisions, explained
from benchmarks.accuracy.tiny100.plan import FULL, tasks
from benchmarks.pruning_law.rows import result_rows
from tests.benchmarks.accuracy.made_results import add_students, decided_results

UNSETTLED = (1.0, 0.9, 0.5)


def settled_iterations(losses: tuple[float, ...]) -> set[int | None]:
    results = decided_results(losses=losses)
    found = [task for _, task in tasks(FULL, decisions(FULL, results), ("settled",))]
    return {cell.iterations for cell in found if isinstance(cell, Cell)}


def test_students_of_the_number_before_are_trained_too() -> None:
    assert settled_iterations(UNSETTLED) == {1000, 3000}
    assert settled_iterations((1.0, 0.9, 0.87)) == {300, 1000}
    # Where the first number is enough, the losses have said so.
    assert settled_iterations((1.0, 0.99)) == set()


@pytest.mark.parametrize(
    ("fewer", "verdict"), [(0.30, "holds"), (0.25, "does not hold"), (0.2901, "undecided")]
)
def test_recovery_has_settled_if_fewer_iterations_give_as_good_students(fewer: float, verdict: str) -> None:
    results = decided_results(losses=UNSETTLED)
    add_students(results, 0.30, ratio=10, iterations=3000)
    add_students(results, fewer, ratio=10, iterations=1000)
    (found,) = [
        claim
        for claim in claims(FULL, results, Noise(deviation=0.005, freedom=40))
        if "settled" in claim.claim
    ]
    assert found.claim.startswith("lpld has settled: students of 1000 iterations")
    assert found.verdict == verdict


def test_students_of_fewer_iterations_count_nowhere_else(tmp_path: Path) -> None:
    results = decided_results(losses=UNSETTLED)
    for ratio, top1 in ((1, 0.34), (10, 0.32)):
        add_students(results, top1, ratio=ratio, iterations=3000)
        add_students(results, top1 / 2, ratio=ratio, iterations=1000)
    cells = [
        asdict(record.cell) | {"top1": record.top1, "rows": record.rows, "bytes": record.bytes}
        for record in results.records.values()
    ]
    document = {
        "cells": cells,
        "scale": FULL.scale.as_json(),
        "decisions": explained(FULL, results),
    }
    (points, *_) = chart._series(document)["lpld, f16"]
    assert sorted(point["mean"] for point in points) == pytest.approx([0.32, 0.34], abs=0.002)
    (tmp_path / "results.json").write_text(json.dumps({"results": document}))
    (row,) = result_rows(tmp_path / "results.json")
    assert (row.top1_before, row.top1) == pytest.approx((34, 32), abs=0.2)
