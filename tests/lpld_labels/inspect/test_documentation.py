"""Every chart is explained."""

from __future__ import annotations

import re
from pathlib import Path

from lpld_labels.inspect.report import make_report, report_page
from tests.factories import make_batches, write_pool
from tests.lpld_labels.inspect.pages import read_page

LARGEST_PICTURE = 150_000


def titles(data: bytes) -> set[str]:
    """Return the names of a page's charts, those of single views aside."""
    page = read_page(data)
    charts = [a for name, a in page.tags if name == "svg" and "data-marks" in a]
    return {str(a["aria-label"]) for a in charts if a["class"] != "chart bars"}


def test_the_documentation_explains_every_chart(project: Path, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", make_batches(1, 2), codec="int4")
    drawn = titles(report_page(make_report(pool)))
    assert len(drawn) >= 10
    lines = (project / "docs" / "report.md").read_text().splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("| ")]
    explained = {name.strip() for row in rows for name in row.split(",")}
    assert drawn - explained == set()


def test_the_picture_of_the_documentation_is_small(project: Path) -> None:
    for page in ("docs/report.md", "README.md"):
        assert re.search(r"images/report.png\)", (project / page).read_text())
    assert 0 < (project / "docs" / "images" / "report.png").stat().st_size < LARGEST_PICTURE
