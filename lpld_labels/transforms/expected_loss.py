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

SCALE = 2.3515
VIEWS_EXPONENT = 0.835
RATIO_EXPONENT = 1.444
LOG_ERROR = 0.465
"""Spread of measured against expected losses, in natural logarithms, on data that the fit had not seen."""
FEWEST_CLASSES = 100
VIEWS_MEASURED = (3000, 60000)
"""Distinct views of a class before pruning, between which the law was measured."""
LARGEST_RATIO = 40
WHERE_MEASURED = "ImageNet-1K and Tiny-ImageNet (paper), 100 classes of the latter (ours)"
_BOUNDS = ("low", "expected", "high")


@dataclass(frozen=True, kw_only=True)
class ExpectedLoss:
    """Share of the top-1 accuracy (0 to 1) that a student loses: expected, and within two standard errors.

    top1: accuracy (0 to 1) of a student of all labels; None where it is not known.
    """

    low: float
    expected: float
    high: float
    top1: float | None = None
    measured_on: str = WHERE_MEASURED

    def as_json(self) -> dict[str, Any]:
        """Return the shares, the points where they can be told, and where they were measured."""
        shares = {name: round(getattr(self, name), 4) for name in _BOUNDS}
        points = None if self.top1 is None else {name: round(self._points(name), 2) for name in _BOUNDS}
        return {**shares, "points": points, "measured_on": self.measured_on}

    def __str__(self) -> str:
        if self.top1 is None:
            return f"{self.expected:.1%} ({self.low:.1%} to {self.high:.1%})"
        low, expected, high = map(self._points, _BOUNDS)
        return f"{expected:.1f} points ({low:.1f} to {high:.1f})"

    @property
    def short(self) -> str:
        """The same in a few characters, in percent of the accuracy, or in points where they can be told."""
        low, expected, high = (
            100 * getattr(self, bound) if self.top1 is None else self._points(bound) for bound in _BOUNDS
        )
        return f"{expected:.1f} ({low:.0f}-{high:.0f})"

    def _points(self, bound: str) -> float:
        share: float = getattr(self, bound)
        return 100 * (self.top1 or 0.0) * share


@dataclass(frozen=True, kw_only=True)
class PruningLaw:
    """The law for one pool: what is lost if only so many of its views stay.

    classes: that have images. views: distinct views per class that the pool has, on average; all_views: that
    it would have if no batch had been left out of its epochs. top1: see `ExpectedLoss`.
    """

    classes: int
    views: float
    all_views: float
    top1: float | None = None

    @staticmethod
    def of(pool: PoolReader, *, top1: float | None = None) -> PruningLaw:
        """Return the law for a pool."""
        counts = pool.manifest.counts
        classes = max(len(np.unique(pool.images.classes)), 1)
        epochs = int(pool.index.epochs.max(initial=-1)) + 1
        views = counts.rows / classes
        return PruningLaw(
            classes=classes,
            views=views,
            all_views=max(views, epochs * counts.images / classes),
            top1=top1,
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
            low=-math.expm1(-rate / factor),
            expected=-math.expm1(-rate),
            high=-math.expm1(-rate * factor),
            top1=self.top1,
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
