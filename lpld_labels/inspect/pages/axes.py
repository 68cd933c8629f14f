"""Scales of charts: from values to coordinates, with round numbers as ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps low..high to start..end, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value, held within the scale."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.logarithmic:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        share = 0.0 if high <= low else (at - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Return round values within the scale, a few."""
        return _decades(self.low, self.high, wanted) if self.logarithmic else _round(self, wanted)


def scale(
    values: Iterable[float], start: float, end: float, *, logarithmic: bool = False, from_zero: bool = False
) -> Scale:
    """Return a scale that holds all finite values; a logarithmic one spans a decade at least."""
    usable = [float(v) for v in values if math.isfinite(v) and (v > 0 or not logarithmic)]
    low, high = (min(usable), max(usable)) if usable else (0.0 if not logarithmic else 1.0, 1.0)
    if logarithmic:
        low, high = 10 ** (math.floor(3 * math.log10(low)) / 3), 10 ** (math.ceil(3 * math.log10(high)) / 3)
        if high < 10 * low:
            low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high * 1.0001))
        return Scale(low=low, high=high, start=start, end=end, logarithmic=True)
    low = min(0.0, low) if from_zero else low
    if high <= low:
        around = max(abs(low) / 4, 1e-9) if low else 0.5
        low, high = low - (0 if from_zero else around), high + around
    return Scale(low=low, high=high, start=start, end=end)


def _round(scale: Scale, wanted: int) -> list[float]:
    rough = (scale.high - scale.low) / wanted
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough)
    first = math.ceil(scale.low / step - 1e-9)
    last = math.floor(scale.high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _decades(low: float, high: float, wanted: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, -(-(last - first + 1) // wanted))
    ticks = [10.0**power for power in range(first, last + 1, every)]
    if len(ticks) > 1:
        return ticks
    inside = [nice * 10.0**power for power in range(first - 1, last + 1) for nice in (1, 2, 5)]
    return [value for value in inside if low <= value <= high]
