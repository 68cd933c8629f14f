"""What a pruning is likely to cost a student, from prunings whose cost is known.

A class with V distinct views that keeps one in R of them loses 1 - exp(-h) of its top-1 accuracy, where
h = SCALE * V ** -VIEWS_EXPONENT * (R - 1) ** RATIO_EXPONENT. ``python -m benchmarks.pruning_law`` fits the
constants to the paper's tables and our own, and a test compares them with its results. They hold for labels
of full precision, kept at random and drawn batch by batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpld_labels.pool.reader import PoolReader

SCALE = 1.4242
VIEWS_EXPONENT = 0.776
RATIO_EXPONENT = 1.403
LOG_ERROR = 0.382
"""Spread of measured against expected losses, in natural logarithms, on data that the fit had not seen."""
FEWEST_CLASSES = 100
VIEWS_MEASURED = (3000, 60000)
"""Distinct views of a class before pruning, between which the law was measured."""
LARGEST_RATIO = 40
WHERE_MEASURED = "ImageNet-1K and Tiny-ImageNet (paper)"


@dataclass(frozen=True, kw_only=True)
class ExpectedLoss:
    """Share of the top-1 accuracy (0 to 1) that a student loses: expected, and within two standard errors."""

    low: float
    expected: float
    high: float

    def as_json(self) -> dict[str, Any]:
        """Return the shares and where they were measured."""
        shares = {name: round(getattr(self, name), 4) for name in ("low", "expected", "high")}
        return {**shares, "measured_on": WHERE_MEASURED}

    def __str__(self) -> str:
        return f"{self.expected:.1%} ({self.low:.1%} to {self.high:.1%})"


@dataclass(frozen=True, kw_only=True)
class PruningLaw:
    """The law for one pool: what is lost if only so many of its views stay.

    classes: that have images. views: distinct views per class that the pool has, on average; all_views: that
    it would have if no batch had been left out of its epochs.
    """

    classes: int
    views: float
    all_views: float

    @staticmethod
    def of(pool: PoolReader) -> PruningLaw:
        """Return the law for a pool."""
        counts = pool.manifest.counts
        classes = max(len(np.unique(pool.images.classes)), 1)
        epochs = int(pool.index.epochs.max(initial=-1)) + 1
        views = counts.rows / classes
        return PruningLaw(
            classes=classes, views=views, all_views=max(views, epochs * counts.images / classes)
        )

    def loss(self, rows: int) -> ExpectedLoss | None:
        """Return what is lost, against all labels of this pool, if `rows` views stay in all.

        None where nothing comparable was measured; `unknown` says why.
        """
        if self.unknown(rows):
            return None
        views = rows / self.classes
        rate = self._rate(views) - self._rate(self.views)
        factor = math.exp(2 * LOG_ERROR)
        return ExpectedLoss(
            low=-math.expm1(-rate / factor), expected=-math.expm1(-rate), high=-math.expm1(-rate * factor)
        )

    def unknown(self, rows: int) -> str:
        """Return why the loss of keeping `rows` views cannot be told; empty where it can."""
        fewest, most = VIEWS_MEASURED
        if self.classes < FEWEST_CLASSES:
            return f"measured for {FEWEST_CLASSES} classes and more"
        # An epoch of hundreds may be missing altogether after pruning.
        if not 0.99 * fewest <= self.all_views <= most:
            return f"measured for {fewest:,} to {most:,} views per class before pruning"
        if rows * LARGEST_RATIO < 0.99 * self.all_views * self.classes:
            return f"measured up to {LARGEST_RATIO}x"
        return ""

    def _rate(self, views: float) -> float:
        """Return h of so many views."""
        ratio = max(self.all_views / views, 1.0)
        return float(SCALE * self.all_views**-VIEWS_EXPONENT * (ratio - 1) ** RATIO_EXPONENT)
