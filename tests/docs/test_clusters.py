"""docs/clusters.md: its figures are those of the function that computes them."""

from pathlib import Path

from benchmarks.scale_out.costs import table


def test_the_cost_table_is_computed(project: Path) -> None:
    page = (project / "docs" / "clusters.md").read_text()
    assert "\n".join(table()) in page
