"""Building HTML so that text from outside stays text.

Everything that is put into a `tag` is escaped unless it is `Markup`, which only this module makes. So the
name of a class or a file can contain anything and shows as it is.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

LONGEST = 160
"""Characters of a text from outside that are shown; names may be as long as their author likes."""
SHORT_CELL = 10
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_VOID = frozenset({"br", "img", "link", "meta", "input", "rect", "circle", "line", "path", "image", "use"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """Return text as HTML; characters that HTML cannot hold become the replacement character."""
    return text if isinstance(text, Markup) else Markup(html.escape(_UNSEEN.sub("\ufffd", text)))


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """Return one element.

    attributes: `class_` is class, `data_key` is data-key; None and False leave an attribute out, True
    writes it without a value.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        words.append(word if value is True else f'{word}="{escaped(_number(value))}"')
    start = " ".join(words)
    if name in _VOID and not children:
        return Markup(f"<{start}/>")
    return Markup(f"<{start}>{joined(children)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    """Return parts one after the other, each escaped unless it is markup."""
    return Markup("".join(escaped(part) for part in parts))


def shortened(text: str, most: int = LONGEST) -> str:
    """Return a text from outside, cut where it is too long to show."""
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "") -> Markup:
    """Return a table whose first column names the rows; it scrolls sideways where it is too wide."""
    head = tag("tr", *(tag("th", name, scope="col") for name in headers))
    body = [tag("tr", tag("th", row[0], scope="row"), *map(_cell, row[1:])) for row in rows]
    parts = [tag("caption", caption)] if caption else []
    whole = tag("table", *parts, tag("thead", head), tag("tbody", *body))
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption or "table")


def _cell(text: str) -> Markup:
    """Return a cell; a number stays on one line, however narrow the page is."""
    return tag("td", text, class_="short" if len(text) <= SHORT_CELL else None)


def folded(summary: str, *content: str) -> Markup:
    """Return content that shows when its heading is pressed."""
    return tag("details", tag("summary", summary), *content)


def _number(value: object) -> str:
    """Coordinates need two digits after the point, not seventeen."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
