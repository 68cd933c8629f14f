"""Output: JSON, lines and tables on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.errors import without_secrets
from lpld_labels.inspect.text import human_bytes

from .common import quiet

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

_SHOWN = 10
"""How many entries of a list a table shows."""


def stdout_console() -> Console:
    """Return the console for data (stdout)."""
    from rich.console import Console

    # Piped tables must not be folded at 80 columns: whoever reads them has no terminal to fit. Unless they
    # say how wide theirs is.
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else 120)


@cache
def stderr_console() -> Console:
    """Return the console for everything that is not data (stderr). One: its progress bars may be nested."""
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


def show(title: str, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the result of a command: JSON, or a table of the same facts."""
    if as_json:
        print_json(dict(facts))
    else:
        stdout_console().print(facts_table(title, _rows(facts)))


def _rows(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from _rows(value, f"{name} ")
        elif isinstance(value, list | tuple):
            if value:
                more = [f"and {len(value) - _SHOWN} more (see --json)"] if len(value) > _SHOWN else []
                yield name, "\n".join([*map(_words, value[:_SHOWN]), *more])
        elif value is not None:
            is_size = isinstance(value, int) and "bytes" in name.split()
            yield name, human_bytes(value) if is_size else _words(value)


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ": ".join(map(_words, value.values()))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
