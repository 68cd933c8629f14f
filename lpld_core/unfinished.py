"""Unfinished work: where it waits, and how often it is made safe.

A job's unfinished work lies in a directory of its own, in or beside the output. One process at a time works
there. Whatever way it ends, the same job goes on from what it finds, and the directory goes when the
output is whole.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lpld_labels.errors import PoolConflictError, PoolWriteError
from lpld_labels.pool.locks import locked
from lpld_labels.pool.storage import TEMPORARY, write_errors

SAVE_SECONDS = 30.0
"""Between two saves: with the time that a save and a step take, a kill costs less than a minute of work."""
SUFFIX = ".unfinished"
LOCK = "lock"


def unfinished_beside(out: Path) -> Path:
    """Return where the unfinished work for a file is."""
    return out.with_name(f"{out.name}{SUFFIX}")


@contextlib.contextmanager
def workplace(directory: Path, *, wait: bool = False) -> Iterator[Path]:
    """Work in a directory that no other process works in; it goes if the block ends well or left nothing.

    wait: until others are done; otherwise PoolConflictError is raised if another process is at work there.
    """
    with contextlib.ExitStack() as stack:
        try:
            with write_errors(directory):
                stack.enter_context(locked(directory / LOCK, wait=wait))
                sweep(directory)
        except PoolWriteError as error:
            if isinstance(error.__cause__, BlockingIOError):
                raise PoolConflictError(
                    "another process is at work here",
                    where=directory,
                    hint="wait until it is done, or choose another output",
                ) from None
            raise
        try:
            yield directory
        except BaseException:
            sweep(directory)
            if [path.name for path in directory.iterdir()] == [LOCK]:
                shutil.rmtree(directory, ignore_errors=True)
            raise
        with write_errors(directory):
            shutil.rmtree(directory)


def sweep(directory: Path) -> None:
    """Delete what a killed process was writing."""
    for path in sorted(directory.glob(f"{TEMPORARY}*")):
        path.unlink()


class Pace:
    """Says when it is time to save; starts when it is made."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def due(self) -> bool:
        """Whether enough time has passed since the last save."""
        return self._clock() - self._last >= SAVE_SECONDS

    def saved(self) -> None:
        """Count from now on."""
        self._last = self._clock()


def require_same_job(found: Mapping[str, Any], wanted: Mapping[str, Any], *, what: str, where: Path) -> None:
    """Raise PoolConflictError naming the first setting in which work differs from what is asked."""
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise PoolConflictError(
                f"{what} is here: '{name}' differs",
                where=where,
                expected=brief(found.get(name)),
                got=brief(wanted.get(name)),
                hint="finish it with its own settings, choose another output, or delete this one",
            )


def brief(value: object) -> str:
    """Return a value in at most 60 characters."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
