"""Output: JSON, lines and tables on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.errors import without_secrets

from .common import quiet

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table


def stdout_console() -> Console:
    """Return the console for data (stdout)."""
    from rich.console import Console

    # Piped tables must not be folded at 80 columns: whoever reads them has no terminal to fit. Unless they
    # say how wide theirs is.
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else 120)


def stderr_console() -> Console:
    """Return the console for everything that is not data (stderr)."""
    from rich.console import Console

    return Console(stderr=True)


def print_json(document: dict[str, Any]) -> None:
    """Print a JSON document to stdout; addresses in it without passwords and queries."""
    click.echo(json.dumps(_public(document), indent=2, allow_nan=False))


def _public(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _public(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_public(inner) for inner in value]
    return without_secrets(value) if isinstance(value, str) else value


def print_line(text: str, *, err: bool = False) -> None:
    """Print a line of data (or, with err, of anything else) without passwords and queries of addresses."""
    click.echo(without_secrets(text), err=err)


def save_html(path: Path, data: bytes) -> None:
    """Write a page and say where it is."""
    from lpld_labels.inspect.page import save_page

    save_page(path, data)
    if not quiet():
        click.echo(f"page saved as {path}", err=True)


def times_smaller(ratio: float) -> str:
    """Return how sizes compare, e.g. ``2.31x smaller`` or ``1.20x larger``."""
    return f"{1 / ratio:#.3g}x larger" if 0 < ratio < 1 else f"{ratio:#.3g}x smaller"


def facts_table(title: str, facts: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and what there is to say; long texts go on in the next line."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(without_secrets(title)), show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts:
        table.add_row(name, escape(without_secrets(str(text))))
    return table


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of numbers or words.

    may_go: columns with a higher number are left out first where there is no room; 0 never.
    """

    heading: str
    cells: Sequence[str]
    justify_right: bool = True
    may_go: int = 0


def fitted_table(
    console: Console, columns: Sequence[Column], *, title: str = "", bold_row: int | None = None
) -> Table:
    """Return a table whose numbers are whole at the console's width; it says which columns had no room."""
    left = list(columns)
    table = _table(title, left, (), bold_row)
    unlimited = console.options.update(max_width=10_000)
    while console.measure(table, options=unlimited).maximum > console.width and any(c.may_go for c in left):
        left.remove(max(left, key=lambda column: column.may_go))
        table = _table(title, left, [column for column in columns if column not in left], bold_row)
    return table


def _table(title: str, columns: Sequence[Column], gone: Sequence[Column], bold_row: int | None) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(title) or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for column in columns:
        table.add_column(
            column.heading,
            justify="right" if column.justify_right else "left",
            no_wrap=True,
            overflow="crop",
        )
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        table.add_row(*map(escape, cells), style="bold" if number == bold_row else None)
    if gone:
        names = ", ".join(" ".join(column.heading.split()) for column in gone)
        table.caption = f"no room for: {names} (see --json)"
        table.caption_justify = "left"
    return table
