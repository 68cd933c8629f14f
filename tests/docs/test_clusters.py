"""docs/clusters.md: its figures are those of the function that computes them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scale_out.costs import cost_of, table


def test_the_cost_table_is_computed(project: Path) -> None:
    page = (project / "docs" / "clusters.md").read_text()
    assert "\n".join(table()) in page


def test_costs_follow_from_the_recipe() -> None:
    """ImageNet-21K at IPC 20: 209,000 images, 300 epochs."""
    cost = cost_of("imagenet21k", 10450, 20, 1)
    assert cost.views == cost.forwards == 209_000 * 300
    pruned = cost_of("imagenet21k", 10450, 20, 40)
    assert pruned.batches == 300 * (209_000 // 32) // 40
    assert pruned.views == pruned.batches * 32
