"""How much students scatter that differ by their seed alone, and what that leaves of a difference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import variance

from benchmarks.accuracy.claims import Rows

USUAL_NOISE = 0.013
"""Standard deviation of one student's top-1 on 1,000 images, where no row was repeated to measure it."""
_CONFIDENCE = 0.975


@dataclass(frozen=True, kw_only=True)
class Noise:
    """deviation: of one student's top-1. freedom: degrees it was measured with, 0 where it was not."""

    deviation: float
    freedom: int

    def two_errors(self, first: int, second: int) -> float:
        """Return two standard errors of a difference between means of so many students.

        Where few students tell how much they scatter, as many more as Student's t asks for.
        """
        return self._two_of(self.deviation * math.sqrt(1 / first + 1 / second))

    def two_errors_of_mean(self, count: int) -> float:
        """Return two standard errors of a mean of so many, if it is their deviation that was measured."""
        return self._two_of(self.deviation / math.sqrt(count))

    def _two_of(self, error: float) -> float:
        from scipy.stats import t

        return max(2.0, float(t.ppf(_CONFIDENCE, self.freedom)) if self.freedom else 2.0) * error


def pooled_noise(rows: Rows) -> Noise:
    """Return the noise over all rows with several seeds."""
    return noise_within(row.top1 for row in rows.values())


def noise_within(groups: Iterable[Sequence[float]]) -> Noise:
    """Return how much the values of a group scatter around its mean, over all groups of several."""
    squares = [(len(group) - 1, variance(group)) for group in groups if len(group) > 1]
    freedom = sum(weight for weight, _ in squares)
    if not freedom:
        return Noise(deviation=USUAL_NOISE, freedom=0)
    deviation = math.sqrt(sum(weight * value for weight, value in squares) / freedom)
    return Noise(deviation=deviation, freedom=freedom)
