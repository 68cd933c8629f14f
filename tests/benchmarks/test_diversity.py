"""A quick run of benchmarks/diversity.py."""

from __future__ import annotations

from pathlib import Path

from benchmarks.accuracy_plan import DIGITS
from benchmarks.accuracy_work import Workshop
from benchmarks.diversity import measure, show


def test_real_images_are_a_row_and_others_have_a_distance_to_them(tmp_path: Path) -> None:
    workshop = Workshop.open(tmp_path, DIGITS)
    results = measure(workshop, ["lpld", "rded"], real_per_class=20)
    show(results)
    rows = {row["images"]: row for row in results["rows"]}
    assert set(rows) == {"lpld", "rded", "real"}
    assert rows["real"]["mmd_squared"] is None
    assert rows["real"]["count"] == 200
    assert rows["lpld"]["count"] == DIGITS.ipc * 10
    # Crops of real images lie closer to real images than what a barely trained teacher dreams up.
    assert 0 < rows["rded"]["mmd_squared"] < rows["lpld"]["mmd_squared"]
    assert all(0 < row["similarity_mean"] < row["similarity_with_self"] <= 1 for row in rows.values())
