"""What prune says a pruning costs: the paper's tables come out, and nothing is said beyond them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lpld_labels.transforms import expected_loss
from lpld_labels.transforms.expected_loss import PruningLaw

IMAGENET_10 = PruningLaw(classes=1000, views=3000, all_views=3000)


@pytest.mark.parametrize(
    ("ipc", "ratio", "before", "after"),
    [(10, 10, 34.6, 32.7), (10, 40, 34.6, 20.2), (50, 20, 55.4, 51.8), (200, 40, 62.6, 59.6)],
)
def test_the_papers_rows_lie_within_two_errors(ipc: int, ratio: int, before: float, after: float) -> None:
    law = PruningLaw(classes=1000, views=300 * ipc, all_views=300 * ipc)
    found = law.loss(1000 * 300 * ipc // ratio)
    assert found is not None
    assert found.low < 1 - after / before < found.high
    assert found.low < found.expected < found.high < 1


def test_keeping_all_costs_nothing_and_less_costs_more() -> None:
    losses = [IMAGENET_10.loss(3_000_000 // ratio) for ratio in (1, 2, 10, 20, 40)]
    expected = [loss.expected for loss in losses if loss is not None]
    assert expected[0] == 0
    assert expected == sorted(expected)
    assert len(set(expected)) == 5


def test_a_pruned_pool_loses_the_difference() -> None:
    """10x and then 4x costs what 40x costs at once."""
    at_once, first = IMAGENET_10.loss(75_000), IMAGENET_10.loss(300_000)
    then = replace(IMAGENET_10, views=300).loss(75_000)
    assert at_once is not None
    assert first is not None
    assert then is not None
    assert (1 - first.expected) * (1 - then.expected) == pytest.approx(1 - at_once.expected)


def test_the_last_epoch_may_be_pruned_away() -> None:
    assert replace(IMAGENET_10, views=300, all_views=2_990).loss(75_000) is not None


@pytest.mark.parametrize(
    ("law", "rows", "why"),
    [
        (replace(IMAGENET_10, classes=20), 6000, "100 classes"),
        (PruningLaw(classes=1000, views=160, all_views=160), 16_000, "views per class"),
        (IMAGENET_10, 3_000_000 // 80, "40x"),
    ],
)
def test_nothing_is_said_beyond_what_was_measured(law: PruningLaw, rows: int, why: str) -> None:
    assert law.loss(rows) is None
    assert why in law.unknown(rows)


def test_points_are_those_of_the_student_that_was_named() -> None:
    share = IMAGENET_10.loss(3_000_000 // 10)
    points = replace(IMAGENET_10, top1=0.346).loss(3_000_000 // 10)
    assert share is not None
    assert points is not None
    assert share.as_json()["points"] is None
    found = points.as_json()
    assert found["points"]["expected"] == pytest.approx(34.6 * share.expected, abs=0.01)
    assert found["points"]["low"] < found["points"]["expected"] < found["points"]["high"]
    assert str(points).startswith(f"{34.6 * share.expected:.1f} points (")
    assert str(share).startswith(f"{share.expected:.1%} (")


def test_constants_are_those_of_the_benchmark(project: Path) -> None:
    results = json.loads((project / "benchmarks/results/pruning_law.json").read_text())["results"]
    assert results["scale"] == expected_loss.SCALE
    assert results["views_exponent"] == expected_loss.VIEWS_EXPONENT
    assert results["ratio_exponent"] == expected_loss.RATIO_EXPONENT
    assert results["log_error_on_unseen_data"] == expected_loss.LOG_ERROR
    assert results["fewest_classes"] == expected_loss.FEWEST_CLASSES
    views = [row["views_before"] for row in results["rows"]]
    assert (min(views), max(views)) == expected_loss.VIEWS_MEASURED
    assert max(row["ratio"] for row in results["rows"]) == expected_loss.LARGEST_RATIO
