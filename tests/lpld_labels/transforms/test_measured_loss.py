"""What prune says a pruning costs: the paper's tables come out, and nothing is said beyond them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lpld_labels.transforms import measured
from lpld_labels.transforms.measured import DistinctViews, Loss

IMAGENET_10 = DistinctViews(classes=1000, views=3000, total=3000)


@pytest.mark.parametrize(
    ("ipc", "ratio", "before", "after"),
    [(10, 10, 34.6, 32.7), (10, 40, 34.6, 20.2), (50, 20, 55.4, 51.8), (200, 40, 62.6, 59.6)],
)
def test_the_papers_rows_lie_within_two_errors(ipc: int, ratio: int, before: float, after: float) -> None:
    law = DistinctViews(classes=1000, views=300 * ipc, total=300 * ipc)
    found = law.loss(1000 * 300 * ipc // ratio)
    assert isinstance(found, Loss)
    assert found.low < 1 - after / before < found.high
    assert found.low < found.expected < found.high < 1


def test_keeping_all_costs_nothing_and_less_costs_more() -> None:
    losses = [IMAGENET_10.loss(3_000_000 // ratio) for ratio in (1, 2, 10, 20, 40)]
    expected = [loss.expected for loss in losses if isinstance(loss, Loss)]
    assert expected[0] == 0
    assert expected == sorted(expected)
    assert len(set(expected)) == 5


def test_a_pruned_pool_loses_the_difference() -> None:
    """10x and then 4x costs what 40x costs at once."""
    at_once, first = IMAGENET_10.loss(75_000), IMAGENET_10.loss(300_000)
    then = replace(IMAGENET_10, views=300).loss(75_000)
    assert isinstance(at_once, Loss)
    assert isinstance(first, Loss)
    assert isinstance(then, Loss)
    assert (1 - first.expected) * (1 - then.expected) == pytest.approx(1 - at_once.expected)


def test_the_last_epoch_may_be_pruned_away() -> None:
    assert isinstance(replace(IMAGENET_10, views=300, total=2_990).loss(75_000), Loss)


@pytest.mark.parametrize(
    ("law", "rows", "why"),
    [
        (replace(IMAGENET_10, classes=20), 6000, "100 classes"),
        (DistinctViews(classes=1000, views=160, total=160), 16_000, "views per class"),
        (IMAGENET_10, 3_000_000 // 80, "40x"),
    ],
)
def test_nothing_is_said_beyond_what_was_measured(law: DistinctViews, rows: int, why: str) -> None:
    reason = law.loss(rows)
    assert isinstance(reason, str)
    assert why in reason


def test_constants_are_those_of_the_benchmark(project: Path) -> None:
    results = json.loads((project / "benchmarks/results/pruning_law.json").read_text())["results"]
    assert results["scale"] == measured.SCALE
    assert results["views_exponent"] == measured.VIEWS_EXPONENT
    assert results["ratio_exponent"] == measured.RATIO_EXPONENT
    assert results["log_error_on_unseen_data"] == measured.LOG_ERROR
    assert results["fewest_classes"] == measured.FEWEST_CLASSES
    views = [row["views_before"] for row in results["rows"]]
    assert (min(views), max(views)) == measured.VIEWS_MEASURED
    assert max(row["ratio"] for row in results["rows"]) == measured.LARGEST_RATIO
