"""Charts as lists of shapes, which templates/parts.html draws as SVG, with a table of the numbers below.

Colours are classes of the style sheet, so that light, dark and paper each have their own. Every mark has a
text that says what it is.
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
_LETTERS_PER_LINE = 62
Format = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One SVG element. kind: rect, path or text. text: of a text element, else the title of a mark."""

    kind: str
    css: str
    text: str
    attributes: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A picture, one sentence on it, and its numbers as a table.

    marks: how many bars or points were drawn; 0 where there was nothing to draw.
    """

    title: str
    says: str
    shapes: Sequence[Shape]
    height: float
    marks: int
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    width: int = WIDTH
    css: str = "chart"


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


def bars(
    title: str,
    says: str,
    items: Sequence[Bar],
    *,
    headers: tuple[str, ...] = ("value",),
    logarithmic: bool = False,
) -> Chart:
    """Return horizontal bars, each below its label. headers: of the table, from the value on."""
    reach = [item.value + item.spread for item in items]
    across = scale(reach, 0, WIDTH - 4, logarithmic=logarithmic, from_zero=not logarithmic)
    shapes = []
    for number, item in enumerate(items):
        top = number * 36
        end = across(item.value) if item.value > 0 or not logarithmic else 0.0
        label = shortened(item.label, max(_LETTERS_PER_LINE - len(item.text), 8))
        shapes.append(text(0, top + 13, label, "label"))
        shapes.append(text(WIDTH, top + 13, item.text, "label end"))
        says_mark, css = f"{shortened(item.label)}: {item.text}", f"mark m{item.colour % COLOURS}"
        shapes.append(rect(0, top + 18, max(end, 1.0), 12, css, says_mark))
        if item.spread:
            low, high = across(item.value - item.spread), across(item.value + item.spread)
            shapes.append(path(f"M{low:.1f} {top + 24}H{high:.1f}", "whisker"))
    return Chart(
        title=title,
        says=says,
        shapes=shapes,
        height=max(len(items) * 36, 40),
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
    ticks = None
    if whole:
        # A column of one number has its tick in the middle.
        middle = 0.5 if edges[1] - edges[0] == 1 else 0.0
        ticks = [(edge + middle, edge) for edge in edges[: -1 : -(-(len(edges) - 1) // 5)]]
    shapes, rows = _axes(across, up, unit, counted, ticks=ticks), []
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        end = high - 1 if whole else high
        name = short_number(low) if end == low else f"{short_number(low)} to {short_number(end)}"
        rows.append((name, f"{count:,}"))
        if count:
            left, right, top = across(low), across(high), up(count)
            width, height = max(right - left - 1, 0.7), max(_FLOOR - top, 0.7)
            shapes.append(rect(left + 0.5, top, width, height, "mark m0", f"{name}: {count:,} {counted}"))
    return Chart(
        title=title,
        says=says,
        shapes=shapes,
        height=_FLOOR + 40,
        marks=sum(1 for count in counts if count),
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
    line: tuple[float, str] | None = None,
) -> Chart:
    """Return points and lines over a common axis; colour, dash and shape tell the series apart.

    line: a vertical line at a value of x, with its name.
    """
    usable = [
        (one, [n for n, (a, b) in enumerate(one.points) if _drawable(a, b, logarithmic_x)]) for one in series
    ]
    points = [one.points[number] for one, numbers in usable for number in numbers]
    xs = [a for a, _ in points] + ([line[0]] if line else [])
    # Not quite to the edges, where half of a point would lie outside.
    across = scale(xs, _LEFT + 6, WIDTH - _RIGHT - 6, logarithmic=logarithmic_x)
    up = scale([b for _, b in points], _FLOOR - 6, _TOP + 6)
    shapes, rows = _axes(across, up, x, y, x_form), []
    bottom = _FLOOR + 52.0
    if line is not None:
        shapes.append(path(f"M{across(line[0]):.1f} {_TOP}V{_FLOOR}", "reference mark"))
    for number, (one, numbers) in enumerate(usable):
        places = [(across(a), up(b)) for a, b in (one.points[n] for n in numbers)]
        if one.joined and len(places) > 1:
            way = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
            shapes.append(path(way, f"line s{number % COLOURS}"))
        for n, (a, b) in zip(numbers, places, strict=True):
            label = one.labels[n] if one.labels else one.name
            value_x, value_y = x_form(one.points[n][0]), short_number(one.points[n][1])
            size = 1.6 if len(places) > 40 else 4.0
            css = f"mark m{number % COLOURS}"
            shapes.append(path(_symbol(number, a, b, size), css, f"{label}: {value_x}, {value_y}"))
            rows.append((shortened(label), value_x, value_y))
        shapes.append(path(_symbol(number, 8, bottom - 4, 4.0), f"m{number % COLOURS}", one.name))
        shapes.append(text(20, bottom, shortened(one.name, 54), "label"))
        bottom += 18
    if line is not None:
        shapes.append(path(f"M8 {bottom - 10:.1f}v10", "reference"))
        shapes.append(text(20, bottom, shortened(f"{line[1]}: {x_form(line[0])}", 54), "label"))
        rows.append((line[1], x_form(line[0]), ""))
        bottom += 18
    return Chart(
        title=title,
        says=says,
        shapes=shapes,
        height=bottom,
        marks=len(points) + (line is not None),
        headers=("", x, y),
        rows=rows,
    )


# Shapes


def rect(x: float, y: float, width: float, height: float, css: str, says: str = "", **more: Any) -> Shape:
    """Return a rectangle. more: further attributes."""
    sizes = {"x": f"{x:.5g}", "y": f"{y:.5g}", "width": f"{width:.5g}", "height": f"{height:.5g}"}
    return Shape(kind="rect", css=css, text=says, attributes={**sizes, **more})


def path(way: str, css: str, says: str = "") -> Shape:
    """Return a path."""
    return Shape(kind="path", css=css, text=says, attributes={"d": way})


def text(x: float, y: float, words: str, css: str) -> Shape:
    """Return a line of text."""
    return Shape(kind="text", css=css, text=words, attributes={"x": f"{x:.5g}", "y": f"{y:.5g}"})


def _symbol(number: int, x: float, y: float, size: float) -> str:
    """Return a circle, square, triangle or diamond: series differ without colour too."""
    d = 1.3 * size
    return (
        f"M{x - size:.1f} {y:.1f}a{size} {size} 0 1 0 {2 * size} 0a{size} {size} 0 1 0 {-2 * size} 0z",
        f"M{x - size:.1f} {y - size:.1f}h{2 * size}v{2 * size}h{-2 * size}z",
        f"M{x:.1f} {y - 1.2 * size:.1f}l{1.2 * size:.1f} {2.2 * size:.1f}h{-2.4 * size:.1f}z",
        f"M{x:.1f} {y - d:.1f}l{d:.1f} {d:.1f}l-{d:.1f} {d:.1f}l-{d:.1f} -{d:.1f}z",
    )[number % 4]


def _drawable(x: float, y: float, logarithmic_x: bool) -> bool:
    return math.isfinite(x) and math.isfinite(y) and (x > 0 or not logarithmic_x)


# Axes


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps low..high to start..end, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value, clipped to the scale."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.logarithmic:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        share = 0.0 if high <= low else (at - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Return a few round values within the scale."""
        if self.logarithmic:
            return self._decades(wanted)
        rough = (self.high - self.low) / wanted
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]

    def _decades(self, wanted: int) -> list[float]:
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        every = max(1, -(-(last - first + 1) // wanted))
        ticks = [10.0**power for power in range(first, last + 1, every)]
        if len(ticks) > 1:
            return ticks
        inside = [nice * 10.0**power for power in range(first - 1, last + 1) for nice in (1, 2, 5)]
        return [value for value in inside if self.low <= value <= self.high]


def scale(
    values: Iterable[float], start: float, end: float, *, logarithmic: bool = False, from_zero: bool = False
) -> Scale:
    """Return a scale that holds all finite values; a logarithmic one spans at least a decade."""
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


def _axes(
    across: Scale,
    up: Scale,
    x: str,
    y: str,
    x_form: Format = short_number,
    *,
    ticks: Sequence[tuple[float, float]] | None = None,
) -> list[Shape]:
    """Return axes, ticks and names. ticks: (place, value) on the x axis, where round values will not do."""
    shapes = []
    for value in up.ticks(4):
        shapes.append(path(f"M{_LEFT} {up(value):.1f}H{WIDTH - _RIGHT}", "grid"))
        shapes.append(text(_LEFT - 4, up(value) + 4, short_number(value), "tick end"))
    for place, value in ticks or [(value, value) for value in across.ticks(4)]:
        shapes.append(path(f"M{across(place):.1f} {_FLOOR}v4", "axis"))
        shapes.append(text(across(place), _FLOOR + 16, x_form(value), "tick middle"))
    shapes.append(path(f"M{_LEFT} {_FLOOR}H{WIDTH - _RIGHT}", "axis"))
    shapes.append(text(WIDTH - _RIGHT, _FLOOR + 32, x, "name end"))
    shapes.append(text(0, _FLOOR + 32, f"\u2191 {y}", "name"))
    return shapes
