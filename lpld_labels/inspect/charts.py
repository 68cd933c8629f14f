"""Charts: coordinates that templates/parts.html draws as SVG, with a table of the numbers below.

Colours are CSS classes. The style sheet defines them for light and dark screens and for paper. Every mark has
a title with the mark's value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lpld_labels.inspect.text import short_number, shortened

WIDTH = 400
COLOURS = 6
_LEFT, _RIGHT, _TOP, _HEIGHT = 46, 12, 10, 150
_FLOOR = _TOP + _HEIGHT
_BAR_HEIGHT = 36
_LETTERS_PER_LINE = 62


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart and its numbers as a table. kind: macro that draws `shapes`. marks: number of bars."""

    title: str
    says: str
    kind: str
    shapes: dict[str, Any]
    height: float
    marks: int
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    width: int = WIDTH


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One horizontal bar. colour: 0 to 5. spread: half the length of a whisker. more: further table cells."""

    label: str
    value: float
    text: str
    colour: int = 0
    spread: float = 0.0
    more: tuple[str, ...] = ()


def bars(title: str, says: str, items: Sequence[Bar], *, headers: tuple[str, ...] = ("value",)) -> Chart:
    """Return horizontal bars, each below its label. headers: titles of the table columns after the label."""
    across = scale([item.value + item.spread for item in items], 0, WIDTH - 4)
    drawn = [
        {
            "label": shortened(item.label, max(_LETTERS_PER_LINE - len(item.text), 8)),
            "text": item.text,
            "title": f"{shortened(item.label)}: {item.text}",
            "colour": item.colour % COLOURS,
            "width": max(across(item.value), 1.0),
            "whisker": [across(item.value + side) for side in (-item.spread, item.spread) if side],
        }
        for item in items
    ]
    return Chart(
        title=title,
        says=says,
        kind="bars",
        shapes={"bars": drawn, "bar_height": _BAR_HEIGHT},
        height=max(len(items) * _BAR_HEIGHT, 40),
        marks=len(items),
        headers=("", *headers),
        rows=[(shortened(item.label), item.text, *item.more) for item in items],
    )


def histogram(
    title: str,
    says: str,
    edges: Sequence[float],
    counts: Sequence[int],
    *,
    unit: str,
    counted: str,
    whole: bool = False,
) -> Chart:
    """Return a histogram. counts: [n]. edges: [n + 1]. whole: values are integers below the upper edge."""
    across = Scale(low=edges[0], high=edges[-1], start=_LEFT, end=WIDTH - _RIGHT)
    up = scale(counts, _FLOOR, _TOP)
    ticks = [(value, value) for value in across.ticks(4)]
    if whole:
        # A column of one number has its tick in the middle.
        middle = 0.5 if edges[1] - edges[0] == 1 else 0.0
        ticks = [(edge + middle, edge) for edge in edges[: -1 : -(-(len(edges) - 1) // 5)]]
    columns, rows = [], []
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        end = high - 1 if whole else high
        name = short_number(low) if end == low else f"{short_number(low)} to {short_number(end)}"
        rows.append((name, f"{count:,}"))
        if count:
            left, right, top = across(low) + 0.5, across(high) - 0.5, min(up(count), _FLOOR - 0.7)
            path = f"M{left:.2f} {_FLOOR}V{top:.2f}H{max(right, left + 0.7):.2f}V{_FLOOR}z"
            columns.append((path, f"{name}: {count:,} {counted}"))
    return Chart(
        title=title,
        says=says,
        kind="axes",
        shapes={
            "x": unit,
            "y": counted,
            "left": _LEFT,
            "right": WIDTH - _RIGHT,
            "floor": _FLOOR,
            "y_ticks": [(up(value), short_number(value)) for value in up.ticks(4)],
            "x_ticks": [(across(place), short_number(value)) for place, value in ticks],
            "marks": columns,
        },
        height=_FLOOR + 40,
        marks=len(columns),
        headers=(unit, counted),
        rows=rows,
    )


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps low..high to start..end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[float]:
        rough = (self.high - self.low) / wanted
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


def scale(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a scale that covers zero and all finite values."""
    usable = [0.0, *(float(value) for value in values if math.isfinite(value))]
    low, high = min(usable), max(usable)
    return Scale(low=low, high=high if high > low else low + 0.5, start=start, end=end)
