from pathlib import Path

from benchmarks.scale_out.costs import table


def test_the_cost_table_is_computed(project: Path) -> None:
    page = (project / "docs" / "clusters.md").read_text()
    assert "\n".join(table()) in page
