from pathlib import Path

import pytest

from benchmarks.accuracy.cells import DIGITS
from benchmarks.accuracy.work import Workshop
from benchmarks.diversity.__main__ import QUICK_CELLS, measure, show
from lpld_core.analysis import analyse
from lpld_core.images import RealFolder


@pytest.mark.thorough
def test_real_images_are_a_row_and_others_have_a_distance_to_them(tmp_path: Path) -> None:
    workshop = Workshop.open(tmp_path, DIGITS)
    results = measure(workshop, QUICK_CELLS, real_per_class=20)
    show(results)
    rows = {row["images"]: row for row in results["rows"]}
    assert set(rows) == {"lpld", "rded", "real"}
    assert rows["real"]["mmd_squared"] is None
    assert rows["real"]["count"] == 200
    assert rows["lpld"]["count"] == DIGITS.ipc * 10
    # Real images that the measure has not seen lie closer to real images than anything made from them.
    unseen = analyse(
        workshop.teacher("plain"),
        [("unseen", RealFolder.open(workshop.validation))],
        RealFolder.open(workshop.train),
        real_per_class=20,
    )
    distance = unseen.folders[0].mmd_squared
    assert distance is not None
    assert distance < 0.5 * min(rows["rded"]["mmd_squared"], rows["lpld"]["mmd_squared"])
    assert all(0 < row["similarity_mean"] < row["similarity_with_self"] <= 1 for row in rows.values())
