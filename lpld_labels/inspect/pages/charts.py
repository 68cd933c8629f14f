"""Charts as SVG: text that can be selected and read aloud, marks that say what they are, a table beside.

Colours are classes of the page's style sheet, so that light, dark and paper each have their own. All charts
are WIDTH wide in their own units and grow or shrink with the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lpld_labels.inspect.pages.axes import Scale, scale
from lpld_labels.inspect.pages.markup import Markup, escaped, folded, shortened, table, tag
from lpld_labels.inspect.pages.numbers import short_number

WIDTH = 400
COLOURS = 6
_LEFT, _RIGHT, _TOP, _HEIGHT = 46, 12, 10, 150
_LETTERS = 62
"""How many fit in a line."""
Format = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A picture, what it says in one line, and its numbers.

    marks: how many bars or points were drawn; 0 where there was nothing to draw.
    """

    title: str
    says: str
    body: Markup
    height: float
    marks: int
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def figure(self) -> Markup:
        """Return the chart with its heading and its table."""
        picture = tag(
            "svg",
            tag("title", self.title),
            tag("desc", self.says),
            self.body if self.marks else _nothing(self.height),
            class_="chart",
            viewBox=f"0 0 {WIDTH} {self.height:g}",
            role="group",
            aria_label=self.title,
            data_marks=self.marks,
        )
        heading = tag("figcaption", tag("h3", self.title), tag("p", self.says))
        numbers = folded("Numbers", table(self.headers, self.rows, caption=self.title))
        return tag("figure", heading, picture, numbers, class_="chart-figure")


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
    parts: list[str] = []
    for number, item in enumerate(items):
        top = number * 36
        end = across(item.value) if item.value > 0 or not logarithmic else 0.0
        parts.append(_text(0, top + 13, shortened(item.label, max(_LETTERS - len(item.text), 8)), "label"))
        parts.append(_text(WIDTH, top + 13, item.text, "label end"))
        shape = {"x": 0, "y": top + 18, "width": max(end, 1.0), "height": 12}
        parts.append(_mark("rect", f"{item.label}: {item.text}", item.colour, **shape))
        if item.spread:
            low, high = across(item.value - item.spread), across(item.value + item.spread)
            parts.append(tag("path", d=f"M{low:.1f} {top + 24}H{high:.1f}", class_="whisker"))
    return Chart(
        title=title,
        says=says,
        body=_together(parts),
        height=max(len(items) * 36, 40),
        marks=len(items),
        headers=("", *headers),
        rows=tuple((shortened(item.label), item.text, *item.more) for item in items),
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

    whole: values are whole numbers, edges too; a column from a to b then holds a to b - 1.
    """
    across = Scale(low=edges[0], high=edges[-1], start=_LEFT, end=WIDTH - _RIGHT)
    up = scale([0, *counts], _TOP + _HEIGHT, _TOP, from_zero=True)
    ticks = _whole_ticks(edges) if whole else None
    parts: list[str] = [*_frame(across, up, unit, counted, short_number, short_number, ticks)]
    rows = []
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        end = high - 1 if whole else high
        name = short_number(low) if end == low else f"{short_number(low)} to {short_number(end)}"
        rows.append((name, f"{count:,}"))
        if count:
            left, right, top = across(low), across(high), up(count)
            shape = {"x": left + 0.5, "width": max(right - left - 1, 0.7), "y": top}
            height = max(_TOP + _HEIGHT - top, 0.7)
            parts.append(_mark("rect", f"{name}: {count:,} {counted}", 0, **shape, height=height))
    return Chart(
        title=title,
        says=says,
        body=_together(parts),
        height=_TOP + _HEIGHT + 40,
        marks=sum(1 for count in counts if count),
        headers=(unit, counted),
        rows=tuple(rows),
    )


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points (x, y) with a name; joined says whether a line runs through them."""

    name: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[str] = ()
    joined: bool = True

    def label(self, number: int) -> str:
        return self.labels[number] if self.labels else self.name


def plot(
    title: str,
    says: str,
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    logarithmic_x: bool = False,
    x_form: Format = short_number,
    y_form: Format = short_number,
    line: tuple[float, str] | None = None,
) -> Chart:
    """Return points and lines over a common axis; colour, dash and shape tell the series apart.

    line: a vertical line at a value, with its name: something known by x alone.
    """
    usable = [_usable(one, logarithmic_x) for one in series]
    xs = [at[0] for one in usable for at in one.points] + ([line[0]] if line else [])
    across = scale(xs, _LEFT + 6, WIDTH - _RIGHT - 6, logarithmic=logarithmic_x)
    # Not quite to the edges, where half of a point would lie outside.
    up = scale([at[1] for one in usable for at in one.points], _TOP + _HEIGHT - 6, _TOP + 6)
    parts: list[str] = [*_frame(across, up, x, y, x_form, y_form)]
    if line is not None:
        parts.append(
            tag("path", d=f"M{across(line[0]):.1f} {_TOP}V{_TOP + _HEIGHT}", class_="reference mark")
        )
    bottom = _TOP + _HEIGHT + 52.0
    rows = []
    for number, one in enumerate(usable):
        parts += _drawn(one, number, across, up, x_form, y_form)
        parts += [
            _shape(number, 8, bottom - 4, one.name),
            _text(20, bottom, shortened(one.name, 54), "label"),
        ]
        bottom += 18
        rows += [(shortened(one.label(i)), x_form(a), y_form(b)) for i, (a, b) in enumerate(one.points)]
    if line is not None:
        parts += [tag("path", d=f"M8 {bottom - 10:.1f}v10", class_="reference")]
        parts.append(_text(20, bottom, shortened(f"{line[1]}: {x_form(line[0])}", 54), "label"))
        bottom += 18
    return Chart(
        title=title,
        says=says,
        body=_together(parts),
        height=bottom,
        marks=sum(len(one.points) for one in usable) + (line is not None),
        headers=("", x, y),
        rows=(*rows, *([(line[1], x_form(line[0]), "")] if line else [])),
    )


def _usable(series: Series, logarithmic_x: bool) -> Series:
    kept = [
        number
        for number, (a, b) in enumerate(series.points)
        if math.isfinite(a) and math.isfinite(b) and (a > 0 or not logarithmic_x)
    ]
    labels = [series.labels[number] for number in kept] if series.labels else ()
    return Series(
        name=series.name,
        points=[series.points[number] for number in kept],
        labels=labels,
        joined=series.joined,
    )


def _drawn(
    series: Series, number: int, across: Scale, up: Scale, x_form: Format, y_form: Format
) -> list[Markup]:
    places = [(across(a), up(b)) for a, b in series.points]
    parts = []
    if series.joined and len(places) > 1:
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
        parts.append(tag("path", d=path, class_=f"line s{number % COLOURS}"))
    for point, ((a, b), (value_x, value_y)) in enumerate(zip(places, series.points, strict=True)):
        says = f"{series.label(point)}: {x_form(value_x)}, {y_form(value_y)}"
        parts.append(_shape(number, a, b, says, small=len(places) > 40, mark=True))
    return parts


def _shape(number: int, x: float, y: float, says: str, *, small: bool = False, mark: bool = False) -> Markup:
    """Return a circle, square, triangle or diamond: told apart without colour too."""
    size = 1.6 if small else 4.0
    d = f"{1.3 * size:.1f}"
    paths = (
        f"M{x - size:.1f} {y:.1f}a{size} {size} 0 1 0 {2 * size} 0a{size} {size} 0 1 0 {-2 * size} 0z",
        f"M{x - size:.1f} {y - size:.1f}h{2 * size}v{2 * size}h{-2 * size}z",
        f"M{x:.1f} {y - 1.2 * size:.1f}l{1.2 * size:.1f} {2.2 * size:.1f}h{-2.4 * size:.1f}z",
        f"M{x:.1f} {y - 1.3 * size:.1f}l{d} {d}l-{d} {d}l-{d} -{d}z",
    )
    kind = "mark " if mark else ""
    return tag("path", tag("title", says), d=paths[number % len(paths)], class_=f"{kind}m{number % COLOURS}")


def _mark(name: str, says: str, colour: int, **shape: object) -> Markup:
    return tag(name, tag("title", says), class_=f"mark m{colour % COLOURS}", **shape)


def _text(x: float, y: float, text: str, kind: str) -> Markup:
    return tag("text", text, x=float(x), y=float(y), class_=kind)


def _whole_ticks(edges: Sequence[float]) -> list[tuple[float, float]]:
    """Return (place, value) for a few columns of whole numbers, in the middle of those of one number."""
    every = -(-(len(edges) - 1) // 5)
    middle = 0.5 if edges[1] - edges[0] == 1 else 0.0
    return [(edge + middle, edge) for edge in edges[:-1:every]]


def _frame(
    across: Scale,
    up: Scale,
    x: str,
    y: str,
    x_form: Format,
    y_form: Format,
    ticks: Sequence[tuple[float, float]] | None = None,
) -> list[Markup]:
    """Return axes, ticks and names. ticks: (place, value) of the x axis where round values will not do."""
    floor = _TOP + _HEIGHT
    parts = []
    for value in up.ticks(4):
        at = up(value)
        parts.append(tag("path", d=f"M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}", class_="grid"))
        parts.append(_text(_LEFT - 4, at + 4, y_form(value), "tick end"))
    for place, value in ticks or [(value, value) for value in across.ticks(4)]:
        at = across(place)
        parts.append(tag("path", d=f"M{at:.1f} {floor}v4", class_="axis"))
        parts.append(_text(at, floor + 16, x_form(value), "tick middle"))
    parts.append(tag("path", d=f"M{_LEFT} {floor}H{WIDTH - _RIGHT}", class_="axis"))
    parts.append(_text(WIDTH - _RIGHT, floor + 32, x, "name end"))
    parts.append(_text(0, floor + 32, f"\u2191 {y}", "name"))
    return parts


def _nothing(height: float) -> Markup:
    return _text(WIDTH / 2, height / 2, "nothing to draw", "tick middle")


def _together(parts: Sequence[str]) -> Markup:
    return Markup("".join(escaped(part) for part in parts))
