"""Measurements of students that `prune` and `plan` rely on, and what follows from them for a pool.

A class with V distinct views that keeps one in R of them loses 1 - exp(-h) of its top-1 accuracy, where
h = SCALE * V ** -VIEWS_EXPONENT * (R - 1) ** RATIO_EXPONENT. This holds for labels of full precision, drawn
batch by batch and pruned at random. Source: benchmarks/results/pruning_law.json.

In the same bytes, a lower fidelity keeps more views and less of each label. BEST_FIDELITY has the fidelity
whose students were best in the bytes of f16 labels pruned to a ratio.
Source: benchmarks/results/accuracy_tiny100.json.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lpld_labels.pool.reader import PoolReader

SCALE = 2.3515
VIEWS_EXPONENT = 0.835
RATIO_EXPONENT = 1.444
LOG_ERROR = 0.465
"""Spread of measured against expected losses, in natural logarithms, on data that the fit had not seen."""
FEWEST_CLASSES = 100
VIEWS_MEASURED = (3000, 60000)
"""Distinct views of a class before pruning, between which the law was measured."""
LARGEST_RATIO = 40
LAW_MEASURED_ON = "ImageNet-1K and Tiny-ImageNet (paper), 100 classes of the latter (ours)"

BEST_FIDELITY = {40.0: 0.95, 160.0: 0.95}
FIDELITY_MEASURED_ON = "100 classes of Tiny-ImageNet"


class Loss(NamedTuple):
    """Share of top-1 accuracy (0 to 1) that a student loses: expected, and within two standard errors."""

    low: float
    expected: float
    high: float

    def as_json(self) -> dict[str, Any]:
        return {name: round(share, 4) for name, share in self._asdict().items()} | {
            "measured_on": LAW_MEASURED_ON
        }

    def __str__(self) -> str:
        return f"{self.expected:.1%} ({self.low:.1%} to {self.high:.1%})"


@dataclass(frozen=True, kw_only=True)
class DistinctViews:
    """Distinct views per class of a pool, on average.

    classes: that have images. total: views if no batch had been left out of the pool's epochs.
    """

    classes: int
    views: float
    total: float

    @staticmethod
    def of(pool: PoolReader) -> DistinctViews:
        counts = pool.manifest.counts
        classes = max(len(np.unique(pool.images.classes)), 1)
        epochs = int(pool.index.epochs.max(initial=-1)) + 1
        views = counts.rows / classes
        return DistinctViews(classes=classes, views=views, total=max(views, epochs * counts.images / classes))

    def loss(self, rows: int) -> Loss | str:
        """Return what is lost if `rows` views of this pool stay, or why that is not known."""
        fewest, most = VIEWS_MEASURED
        if self.classes < FEWEST_CLASSES:
            return f"measured for {FEWEST_CLASSES} classes and more"
        # Pruning may remove the last epoch, one of hundreds, altogether.
        if not 0.99 * fewest <= self.total <= most:
            return f"measured for {fewest:,} to {most:,} views per class before pruning"
        if rows * LARGEST_RATIO < 0.99 * self.total * self.classes:
            return f"measured up to {LARGEST_RATIO}x"
        rate = self._rate(rows / self.classes) - self._rate(self.views)
        factor = math.exp(2 * LOG_ERROR)
        return Loss(-math.expm1(-rate / factor), -math.expm1(-rate), -math.expm1(-rate * factor))

    def _rate(self, views: float) -> float:
        """Return h of so many views."""
        ratio = max(self.total / views, 1.0)
        return float(SCALE * self.total**-VIEWS_EXPONENT * (ratio - 1) ** RATIO_EXPONENT)


def best_fidelity(ratio: float) -> tuple[float, float]:
    """Return (measured ratio, fidelity) nearest to a budget that holds 1 / `ratio` of all labels in f16."""
    return min(BEST_FIDELITY.items(), key=lambda known: abs(math.log(known[0] / max(ratio, 1.0))))
