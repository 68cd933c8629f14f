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
from lpld_labels.inspect.text import human_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_SHOWN = 10
"""How many entries of a list a table shows."""
_SHOWN_FILES = 3


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


def show_reuse() -> None:
    """Print what resumed and growing jobs reuse to stderr."""
    import logging

    reuse = logging.getLogger("lpld_labels.reuse")
    reuse.setLevel(logging.INFO)
    reuse.propagate = False
    reuse.handlers[:] = [] if quiet() else [logging.StreamHandler()]


@contextlib.contextmanager
def says_if_finished(out: Path | str, *, pool: bool = True) -> Iterator[None]:
    """Say that nothing was done if a job leaves its output as it was.

    pool: the output is a pool, whose manifest is written last; else a folder that is moved into place.
    """
    from lpld_labels.format.schema import MANIFEST_FILE

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
    """Say on Ctrl-C that the same command resumes."""
    try:
        yield
    except KeyboardInterrupt:
        where = without_secrets(str(out))
        click.echo(f"stopped: finished work is safe in {where}; run the same command again", err=True)
        raise


def look_over(folder: Path) -> list[str]:
    """Return the class names of an image folder; note files that are skipped.

    One image of each kind is decoded, so that unsupported kinds fail before any work starts.
    """
    from lpld_labels.render.images import class_names, list_images, passed_over, try_each_kind

    paths, _ = list_images(folder)
    try_each_kind(folder, paths)
    skipped = passed_over(folder)
    if skipped:
        files = f"{len(skipped)} files" if len(skipped) > 1 else "1 file"
        shown = ", ".join(skipped[:_SHOWN_FILES]) + (", ..." if len(skipped) > _SHOWN_FILES else "")
        note(f"note: {files} in {folder} skipped, no image extension: {shown}")
    return class_names(folder)


def stdout_console() -> Console:
    """Return the console for data (stdout)."""
    from rich.console import Console

    # Piped tables must not be folded at 80 columns, rich's width without a terminal, unless COLUMNS is set.
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


def times_smaller(ratio: float) -> str:
    """Return how sizes compare, e.g. ``2.31x smaller`` or ``1.20x larger``."""
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
