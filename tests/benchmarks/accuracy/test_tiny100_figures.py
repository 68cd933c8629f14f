"""What the figures of tiny100 rest on: how much students scatter, and what codecs were chosen from."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.noise import pooled_noise
from benchmarks.accuracy.report import gathered
from benchmarks.accuracy.tiny100.plan import FULL
from benchmarks.accuracy.tiny100.report import choice
from tests.benchmarks.accuracy.made_results import add_students, decided_results


def test_few_students_say_little_of_how_much_they_scatter() -> None:
    """Two students that happen to agree would make every difference count."""
    results = decided_results()
    add_students(results, 0.30, ratio=10, seeds=(0, 1))
    few = pooled_noise(gathered(list(results.records.values())))
    for ratio in range(100, 120):
        add_students(results, 0.30, ratio=ratio, seeds=(0, 1, 2))
    many = pooled_noise(gathered(list(results.records.values())))
    assert few.freedom < 10
    assert many.freedom > 40
    assert few.two_errors(3, 3) / few.deviation > 1.5 * many.two_errors(3, 3) / many.deviation
    assert many.two_errors(2, 2) == pytest.approx(2.0 * many.deviation, rel=0.02)


def test_what_was_chosen_stands_beside_what_it_was_chosen_from() -> None:
    results = decided_results()
    add_students(results, 0.24, ratio=40)
    for fidelity, top1 in zip(FULL.fidelities, (0.30, 0.31, 0.35, 0.33, 0.2), strict=True):
        add_students(results, top1, seeds=(0,), ratio=40, codec="klt", fidelity=fidelity)
    tried = choice(FULL, results)
    assert [entry["codec"] for entry in tried][:2] == ["klt 0.95", "klt 0.9"]
    assert "f16" in {entry["codec"] for entry in tried}
    assert {entry["ratio"] for entry in tried} == {40}
