"""The table that says from which ratio on a pool loses, against what `prune` says."""

from __future__ import annotations

import re

import pytest

from benchmarks.readme.law import COSTS, VIEWS, law
from benchmarks.readme.parts import Results
from lpld_labels.transforms.measured import DistinctViews, Loss

CLASSES = 1000


def rows() -> dict[int, list[str]]:
    lines = [line for line in law(Results()) if re.match(r"\| [\d,]+ \|", line)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {int(first.replace(",", "")): rest for first, *rest in cells}


def test_the_ratios_are_those_at_which_prune_expects_the_loss() -> None:
    told = 0
    for views, ratios in rows().items():
        pool = DistinctViews(classes=CLASSES, views=views, total=views)
        for cost, text in zip(COSTS, ratios, strict=True):
            if text.startswith("more than"):
                loss = pool.loss(CLASSES * views // 40)
                assert isinstance(loss, Loss)
                assert loss.expected < cost
                continue
            # The ratio is told as a whole number.
            low, high = (
                pool.loss(int(CLASSES * views / (int(text.removesuffix("x")) + half))) for half in (-0.5, 0.5)
            )
            assert isinstance(low, Loss)
            assert isinstance(high, Loss)
            assert low.expected < cost < high.expected
            told += 1
    assert told >= 8
    assert set(rows()) == set(VIEWS)


@pytest.mark.parametrize("name", ["scale", "views_exponent", "ratio_exponent"])
def test_the_sentence_names_the_constants(name: str) -> None:
    assert f"{Results()['pruning_law'][name]:.2f}" in "\n".join(law(Results()))
