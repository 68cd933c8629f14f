"""The fidelity that plan asks for is the one whose students were best, by the results that are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lpld_labels.rewriting import best_fidelity
from lpld_labels.rewriting.best_fidelity import MEASURED, MeasuredBudget, nearest_budget


def test_the_table_is_that_of_the_benchmark(project: Path) -> None:
    results = json.loads((project / "benchmarks/results/accuracy_tiny100.json").read_text())["results"]
    found = {f"f16 at {budget.ratio:g}x": budget.fidelity for budget in MEASURED}
    assert found == results["decisions"]["klt_fidelity"]
    for budget in MEASURED:
        students = {
            cell["fidelity"]: cell["top1"]
            for cell in results["cells"]
            if (cell["codec"], cell["ratio"], cell["seed"]) == ("klt", budget.ratio, 0)
            and not (cell["temperature_schedule"] or cell["student_temperature"])
        }
        assert len(students) == 5
        assert max(students, key=lambda fidelity: students[fidelity]) == budget.fidelity


@pytest.mark.parametrize(("ratio", "nearest"), [(0.1, 10), (1, 10), (19, 10), (21, 40), (79, 40), (1e9, 160)])
def test_the_nearest_is_taken_by_its_ratio(
    monkeypatch: pytest.MonkeyPatch, ratio: float, nearest: float
) -> None:
    table = [MeasuredBudget(ratio=of, fidelity=0.9) for of in (10, 40, 160)]
    monkeypatch.setattr(best_fidelity, "MEASURED", table)
    assert nearest_budget(ratio).ratio == nearest
