"""A picture of steps: boxes from top to bottom, each made from the one above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lpld_labels.inspect.pages.charts import WIDTH
from lpld_labels.inspect.pages.markup import Markup, shortened, tag

_LINE, _GAP = 17, 26
_LETTERS = 58


@dataclass(frozen=True, kw_only=True)
class Step:
    """A box: what it is, lines about it, and what the arrow that leads to it says."""

    name: str
    lines: Sequence[str] = ()
    arrow: str = ""


def flow(title: str, says: str, steps: Sequence[Step]) -> Markup:
    """Return the picture; the last box is the thing itself."""
    parts: list[str] = []
    top = 4.0
    for number, step in enumerate(steps):
        if number:
            middle = WIDTH / 2
            parts.append(tag("path", d=f"M{middle} {top}v{_GAP - 6}", class_="axis"))
            parts.append(tag("path", d=f"M{middle - 5} {top + _GAP - 9}l5 7l5 -7", class_="axis"))
            parts.append(tag("text", shortened(step.arrow, 26), x=middle + 12, y=top + 16, class_="tick"))
            top += _GAP
        height = 10.0 + _LINE * (1 + len(step.lines))
        kind = "mark box last" if number == len(steps) - 1 else "mark box"
        parts.append(tag("rect", x=1, y=top, width=WIDTH - 2, height=height, rx=5, class_=kind))
        parts.append(tag("text", shortened(step.name, _LETTERS), x=10, y=top + 17, class_="strong"))
        for line, text in enumerate(step.lines, 1):
            at = top + 17 + line * _LINE
            parts.append(tag("text", tag("title", text), shortened(text, _LETTERS), x=10, y=at))
        top += height
    return tag(
        "svg",
        tag("title", title),
        tag("desc", says),
        *parts,
        class_="flow",
        viewBox=f"0 0 {WIDTH} {top + 4:g}",
        role="group",
        aria_label=title,
        data_marks=len(steps),
    )
