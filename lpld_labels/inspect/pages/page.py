"""The frame of a page: one file that runs nothing but its own script and loads nothing at all."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.inspect.pages.charts import Chart
from lpld_labels.inspect.pages.markup import Markup, joined, tag
from lpld_labels.io.storage import write_atomically
from lpld_labels.transforms.outputs import require_apart
from lpld_labels.version import __version__

MOST_BYTES = 5_000_000
_GENERATOR = 'name="generator" content="lpld-labels '
_HEAD_BYTES = 4096
"""Of a page: they hold what says that it is ours."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page with a heading; `key` is what links point to."""

    key: str
    heading: str
    parts: Sequence[str]


def charts_in_grid(charts: Sequence[Chart]) -> Markup:
    """Return charts side by side where there is room."""
    return tag("div", *(chart.figure() for chart in charts), class_="grid-of-charts")


def page(title: str, lead: Sequence[str], sections: Sequence[Section]) -> bytes:
    """Return a whole HTML file."""
    style, script = _asset("page.css"), _asset("page.js")
    # Hashes, not 'unsafe-inline': if text from outside ever got through as markup, it could still not run.
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="generator", content=f"lpld-labels {__version__}"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        Markup(f"<style>{style}</style>"),
    )
    links = tag("nav", *(tag("a", s.heading, href=f"#{s.key}") for s in sections), aria_label="parts")
    body = [
        tag("section", tag("h2", section.heading), *section.parts, id=section.key) for section in sections
    ]
    main = tag("main", tag("h1", title), *lead, links, *body)
    foot = tag("p", f"Made by lpld-labels {__version__}.", class_="quiet")
    html = joined(
        (
            Markup("<!DOCTYPE html>\n"),
            tag(
                "html",
                tag("head", *head),
                tag("body", main, foot, Markup(f"<script>{script}</script>")),
                lang="en",
            ),
        )
    )
    return html.encode("utf-8")


def require_page_place(path: Path, *inputs: str | os.PathLike[str]) -> None:
    """Refuse a place for a page among what it is made from, or where anything but another page of ours is."""
    require_apart(path, *inputs)
    if path.is_dir() or (path.is_file() and not _is_page(path)):
        raise PoolConflictError(
            "something is here that is no page of ours",
            where=path,
            hint="choose another path, or move it away: only pages are ever replaced",
        )


def _is_page(path: Path) -> bool:
    with path.open("rb") as stream:
        return _GENERATOR.encode() in stream.read(_HEAD_BYTES)


def save_page(path: Path, data: bytes) -> None:
    """Write a page, in the place of nothing but another, unless it grew beyond what opens quickly."""
    require_page_place(path)
    if len(data) > MOST_BYTES:
        raise InvalidArgumentError(
            "the page is too large", where=path, expected=f"at most {MOST_BYTES} bytes", got=len(data)
        )
    write_atomically(path, data)


def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
