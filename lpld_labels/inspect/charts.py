"""Charts: coordinates that templates/parts.html draws as SVG, with a table of the numbers below.

Colours are classes of the style sheet, so that light, dark and paper each have their own. Every mark has a
title with its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lpld_labels.inspect.text import short_number, shortened

WIDTH = 400
COLOURS = 6
_LEFT, _RIGHT, _TOP, _HEIGHT = 46, 12, 10, 150
_FLOOR = _TOP + _HEIGHT
_BAR_HEIGHT = 36
_LETTERS_PER_LINE = 62
Format = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A picture, one sentence on it, and its numbers as a table.

    kind: the macro that draws it, with `shapes`. marks: how many bars or points it has; 0 without data.
    """

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
    """One horizontal bar.

    text: the value as people read it. colour: 0 to 5. spread: half the length of a whisker.
    more: further cells of its row in the table.
    """

    label: str
    value: float
    text: str
    colour: int = 0
    spread: float = 0.0
    more: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points (x, y) with a name. joined: draw a line through them. labels: of the points, else the name."""

    name: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[str] = ()
    joined: bool = True


def bars(title: str, says: str, items: Sequence[Bar], *, headers: tuple[str, ...] = ("value",)) -> Chart:
    """Return horizontal bars, each below its label. headers: of the table, from the value on."""
    across = scale([item.value + item.spread for item in items], 0, WIDTH - 4, from_zero=True)
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
    """Return columns over a value: counts [n] between edges [n + 1].

    whole: values and edges are whole numbers; a column from a to b then holds a to b - 1.
    """
    across = Scale(low=edges[0], high=edges[-1], start=_LEFT, end=WIDTH - _RIGHT)
    up = scale([0, *counts], _FLOOR, _TOP, from_zero=True)
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
            columns.append((path, 0, f"{name}: {count:,} {counted}"))
    return Chart(
        title=title,
        says=says,
        kind="axes",
        shapes={
            **_axes(unit, counted, up),
            "x_ticks": [(across(place), short_number(value)) for place, value in ticks],
            "marks": columns,
        },
        height=_FLOOR + 40,
        marks=len(columns),
        headers=(unit, counted),
        rows=rows,
    )


def plot(
    title: str,
    says: str,
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    logarithmic_x: bool = False,
    x_form: Format = short_number,
) -> Chart:
    """Return points and lines over a common axis; colour, dash and shape tell the series apart."""

    def drawable(point: tuple[float, float]) -> bool:
        return all(map(math.isfinite, point)) and (point[0] > 0 or not logarithmic_x)

    points = [point for one in series for point in one.points if drawable(point)]
    # Not quite to the edges, where half of a point would lie outside.
    xs, left, right = [a for a, _ in points], _LEFT + 6, WIDTH - _RIGHT - 6
    across = scale(xs, left, right, logarithmic=logarithmic_x)
    up = scale([b for _, b in points], _FLOOR - 6, _TOP + 6)
    lines, marks, legend, rows = [], [], [], []
    for number, one in enumerate(series):
        colour = number % COLOURS
        kept = [n for n, point in enumerate(one.points) if drawable(point)]
        places = [(across(a), up(b)) for a, b in (one.points[n] for n in kept)]
        if one.joined and len(places) > 1:
            lines.append(("M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places), colour))
        for n, place in zip(kept, places, strict=True):
            label = one.labels[n] if one.labels else one.name
            value_x, value_y = x_form(one.points[n][0]), short_number(one.points[n][1])
            symbol = _symbol(number, *place, 1.6 if len(places) > 40 else 4.0)
            marks.append((symbol, colour, f"{label}: {value_x}, {value_y}"))
            rows.append((shortened(label), value_x, value_y))
        bottom = _FLOOR + 52 + 18 * number
        legend.append((_symbol(number, 8, bottom - 4, 4.0), colour, shortened(one.name, 54), bottom))
    return Chart(
        title=title,
        says=says,
        kind="axes",
        shapes={
            **_axes(x, y, up),
            "x_ticks": [(across(value), x_form(value)) for value in across.ticks(4)],
            "lines": lines,
            "marks": marks,
            "legend": legend,
        },
        height=_FLOOR + 52 + 18 * len(series),
        marks=len(points),
        headers=("", x, y),
        rows=rows,
    )


def _axes(x: str, y: str, up: Scale) -> dict[str, Any]:
    """Return names of the axes, where they are, and the ticks of the vertical one."""
    y_ticks = [(up(value), short_number(value)) for value in up.ticks(4)]
    return {"x": x, "y": y, "left": _LEFT, "right": WIDTH - _RIGHT, "floor": _FLOOR, "y_ticks": y_ticks}


def _symbol(number: int, x: float, y: float, size: float) -> str:
    """Return a circle, square, triangle or diamond: series differ without colour too."""
    d = 1.3 * size
    return (
        f"M{x - size:.1f} {y:.1f}a{size} {size} 0 1 0 {2 * size} 0a{size} {size} 0 1 0 {-2 * size} 0z",
        f"M{x - size:.1f} {y - size:.1f}h{2 * size}v{2 * size}h{-2 * size}z",
        f"M{x:.1f} {y - 1.2 * size:.1f}l{1.2 * size:.1f} {2.2 * size:.1f}h{-2.4 * size:.1f}z",
        f"M{x:.1f} {y - d:.1f}l{d:.1f} {d:.1f}l-{d:.1f} {d:.1f}l-{d:.1f} -{d:.1f}z",
    )[number % 4]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps low..high to start..end. logarithmic: low and high are powers of ten, values are not."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value, clipped to the scale."""
        at = math.log10(value) if self.logarithmic else value
        share = (min(max(at, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Return a few round values within the scale."""
        if self.logarithmic:
            decades = range(math.ceil(self.low), math.floor(self.high) + 1)
            return [10.0**power for power in decades[:: -(-len(decades) // wanted)]]
        rough = (self.high - self.low) / wanted
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


def scale(
    values: Iterable[float], start: float, end: float, *, logarithmic: bool = False, from_zero: bool = False
) -> Scale:
    """Return a scale that holds all finite values; a logarithmic one has whole decades at its ends."""
    usable = [float(v) for v in values if math.isfinite(v) and (v > 0 or not logarithmic)]
    low, high = (min(usable), max(usable)) if usable else (1.0, 1.0) if logarithmic else (0.0, 1.0)
    if logarithmic:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return Scale(low=first, high=max(last, first + 1), start=start, end=end, logarithmic=True)
    low = min(0.0, low) if from_zero else low
    if high <= low:
        around = max(abs(low) / 4, 1e-9) if low else 0.5
        low, high = low - (0 if from_zero else around), high + around
    return Scale(low=low, high=high, start=start, end=end)
