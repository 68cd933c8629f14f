"""Output of the commands: JSON, lines and tables on stdout; notes and warnings on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.errors import without_secrets

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def progress_as_json() -> bool:
    """Whether the program was called with ``--progress json``."""
    return bool(_program_option("progress") == "json")


def quiet() -> bool:
    """Whether the program was called with ``-q``: print results and errors only."""
    return bool(_program_option("quiet"))


def _program_option(name: str) -> Any:
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_root().params.get(name)


def note(text: str) -> None:
    """Print a line to stderr, unless the program was called with ``-q``."""
    if not quiet():
        click.echo(text, err=True)


@contextlib.contextmanager
def says_if_finished(out: Path | str | None, *, pool: bool = True) -> Iterator[None]:
    """Print a note if a job leaves its output unchanged.

    out: None for a job that writes nothing.
    pool: True if the output is a pool with a manifest; False if it is a folder that is moved into place.
    """
    from lpld_labels.format.schema import MANIFEST_FILE

    if out is None:
        yield
        return
    file = Path(out, MANIFEST_FILE) if pool else Path(out)
    before = _identity(file)
    yield
    if before is not None and _identity(file) == before:
        note(f"{out}: finished before, nothing was left to do")


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


@contextlib.contextmanager
def says_if_stopped(out: Path | str) -> Iterator[None]:
    """On Ctrl-C, say that the same command resumes."""
    try:
        yield
    except KeyboardInterrupt:
        where = without_secrets(str(out))
        click.echo(f"stopped; run the same command again to resume {where} from its last save", err=True)
        raise


def stdout_console() -> Console:
    """Return the console for data (stdout)."""
    from rich.console import Console

    # Without a terminal and COLUMNS, rich would fold tables at 80 columns, which is too narrow for pipes.
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else 120)


@cache
def stderr_console() -> Console:
    """Return the console for everything but data (stderr). It is shared, so that progress bars can nest."""
    from rich.console import Console

    return Console(stderr=True)


def print_json(document: dict[str, Any]) -> None:
    """Print a JSON document to stdout, without the passwords and queries of addresses."""
    click.echo(json.dumps(_public(document), indent=2, allow_nan=False))


def _public(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _public(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_public(inner) for inner in value]
    return without_secrets(value) if isinstance(value, str) else value


def times_smaller(ratio: float) -> str:
    """Return a size ratio in words, e.g. ``2.31x smaller``; below 1, e.g. ``1.20x larger``."""
    return f"{1 / ratio:#.3g}x larger" if 0 < ratio < 1 else f"{ratio:#.3g}x smaller"


def facts_table(title: str, facts: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values; long values are folded."""
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
        from lpld_labels.inspect.shown import fact_rows

        stdout_console().print(facts_table(title, fact_rows(facts)))
