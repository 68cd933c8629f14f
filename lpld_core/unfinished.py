"""Unfinished work: where it lies, and how it is saved.

Unfinished work lies in a directory of its own, in or beside the output. One process at a time works there.
Whatever way it ends, the same work resumes from there, and the directory is deleted when the output is whole.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lpld_core.networks.weights import Tensors, WeightsFile, read_weights, save_weights
from lpld_labels.errors import PoolConflictError, PoolWriteError
from lpld_labels.io.locks import locked
from lpld_labels.io.storage import TEMPORARY, refuse_links, write_errors

SUFFIX = ".unfinished"
LOCK = "lock"
SAVE_SECONDS = 30.0
"""Between two saves: with the time that a save and a step take, a kill costs less than a minute of work."""


def unfinished_beside(out: Path) -> Path:
    """Return where the unfinished work for a file is."""
    return out.with_name(f"{out.name}{SUFFIX}")


@contextlib.contextmanager
def workplace(directory: Path, *, wait: bool = False) -> Iterator[Path]:
    """Work in a directory that no other process works in; it goes if the block ends well or left nothing.

    wait: until others are done; otherwise PoolConflictError is raised if another process is at work there.
    """
    refuse_links([directory])
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
            # If nothing can be deleted any more, the next run sweeps; the first error counts.
            with contextlib.suppress(OSError):
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


class Checkpoint:
    """A file with the state of unfinished work, to be replaced every SAVE_SECONDS."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saved = time.monotonic()

    def load(self) -> WeightsFile | None:
        """Return what was saved, or None."""
        return read_weights(self.path) if self.path.exists() else None

    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self._saved >= SAVE_SECONDS

    def save(self, state: Tensors, **about: Any) -> None:
        """Replace the file. about: JSON values."""
        save_weights(self.path, state, about)
        self._saved = time.monotonic()


def require_same_job(
    found: Mapping[str, Any], wanted: Mapping[str, Any], *, what: str, where: Path, otherwise: str
) -> None:
    """Raise PoolConflictError naming the first setting in which work differs from what is asked.

    otherwise: what else one may do, e.g. "delete this one".
    """
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise PoolConflictError(
                f"{what} is here: '{name}' differs",
                where=where,
                expected=brief(found.get(name)),
                got=brief(wanted.get(name)),
                hint=f"finish it with its own settings, choose another output, or {otherwise}",
            )


def brief(value: object) -> str:
    """Return a value in at most 60 characters."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
