"""What commands say about an output that is there already."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from .common_options import quiet


@contextlib.contextmanager
def says_if_finished(file: Path) -> Iterator[None]:
    """Say that nothing was done if a job ends with the very file that was there before it.

    file: what is written last: a pool's manifest, a run's result, a folder that is put in its place.
    """
    before = _identity(file)
    yield
    if before is not None and _identity(file) == before and not quiet():
        where = file if file.is_dir() else file.parent
        click.echo(f"{where}: finished before, nothing was left to do", err=True)


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
