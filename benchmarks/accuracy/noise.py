"""The spread of students that differ only by their seed, and the standard errors that follow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import variance

from benchmarks.accuracy.rows import Rows

USUAL_NOISE = 0.013
"""Standard deviation of one student's top-1, if no row has several seeds."""
_CONFIDENCE = 0.975


@dataclass(frozen=True, kw_only=True)
class Noise:
    """deviation: of one student's top-1. freedom: degrees of freedom of its measurement, or 0."""

    deviation: float
    freedom: int

    def two_errors(self, first: int, second: int) -> float:
        """Return two standard errors of a difference between means of so many students.

        If few students were measured, the factor is Student's t instead of 2.
        """
        return self._two_of(self.deviation * math.sqrt(1 / first + 1 / second))

    def two_errors_of_mean(self, count: int) -> float:
        """Return two standard errors of a mean of so many values with this deviation."""
        return self._two_of(self.deviation / math.sqrt(count))

    def _two_of(self, error: float) -> float:
        from scipy.stats import t

        return max(2.0, float(t.ppf(_CONFIDENCE, self.freedom)) if self.freedom else 2.0) * error


def pooled_noise(rows: Rows) -> Noise:
    """Return the noise over all rows with several seeds."""
    return noise_within(row.top1 for row in rows.values())


def noise_within(groups: Iterable[Sequence[float]]) -> Noise:
    """Return the deviation of values from the mean of their group, pooled over groups of several values."""
    squares = [(len(group) - 1, variance(group)) for group in groups if len(group) > 1]
    freedom = sum(weight for weight, _ in squares)
    if not freedom:
        return Noise(deviation=USUAL_NOISE, freedom=0)
    deviation = math.sqrt(sum(weight * value for weight, value in squares) / freedom)
    return Noise(deviation=deviation, freedom=freedom)
