from pathlib import Path

import pytest

from benchmarks.common.label_source import REAL_LABELS
from benchmarks.scaling.__main__ import OPERATIONS, draw, growth, measure, show
from tests.benchmarks.conftest import assert_drawn


@pytest.mark.thorough
def test_bytes_and_memory_do_not_grow_with_the_pool(tmp_path: Path) -> None:
    rows = measure(REAL_LABELS, base=10, steps=(1, 4))
    grown = growth(rows)
    results = {"rows": rows, "growth": grown}
    show(results)
    draw(results, tmp_path / "chart.png")
    assert_drawn(tmp_path / "chart.png")
    assert {row["operation"] for row in rows} == set(OPERATIONS)
    few, many = grown["write"]["bytes_per_row"]
    assert 0.95 < many / few < 1.05
    # Each operation runs in a process of its own. Memory must not follow the fourfold labels.
    assert all(facts["memory"] < 2 for facts in grown.values())
