"""Unfinished work: a locked directory in or beside the output, which holds checkpoints.

Running the command again resumes from the checkpoints. The directory is deleted when the output is complete.
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
from lpld_labels.pool.unfinished import differences

SUFFIX = ".unfinished"
LOCK = "lock"
SAVE_SECONDS = 30.0
"""Time between saves. A killed process loses less than a minute of work."""


def unfinished_beside(out: Path) -> Path:
    """Return the directory for unfinished work on a file."""
    return out.with_name(f"{out.name}{SUFFIX}")


@contextlib.contextmanager
def workplace(directory: Path, *, wait: bool = False) -> Iterator[Path]:
    """Lock a directory; delete it on success, or if it is empty. wait: wait for the lock, do not raise."""
    refuse_links([directory])
    with contextlib.ExitStack() as stack:
        try:
            with write_errors(directory):
                stack.enter_context(locked(directory / LOCK, wait=wait))
                sweep(directory)
        except PoolWriteError as error:
            if isinstance(error.__cause__, BlockingIOError):
                raise PoolConflictError(
                    "another process is using this directory",
                    where=directory,
                    hint="wait for that process, or choose another output",
                ) from None
            raise
        try:
            yield directory
        except BaseException:
            # If this cleanup fails, the next run repeats it; the original error is raised.
            with contextlib.suppress(OSError):
                sweep(directory)
                if [path.name for path in directory.iterdir()] == [LOCK]:
                    shutil.rmtree(directory, ignore_errors=True)
            raise
        with write_errors(directory):
            shutil.rmtree(directory)


def sweep(directory: Path) -> None:
    """Delete the temporary files that a killed process left."""
    for path in sorted(directory.glob(f"{TEMPORARY}*")):
        path.unlink()


class Checkpoint:
    """A file with the state of unfinished work, replaced every SAVE_SECONDS."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saved = time.monotonic()

    def load(self) -> WeightsFile | None:
        return read_weights(self.path) if self.path.exists() else None

    def due(self) -> bool:
        return time.monotonic() - self._saved >= SAVE_SECONDS

    def save(self, state: Tensors, **about: Any) -> None:
        """Replace the file. about: JSON values to store with the tensors."""
        save_weights(self.path, state, about)
        self._saved = time.monotonic()


def require_same_job(
    found: Mapping[str, Any],
    wanted: Mapping[str, Any],
    *,
    what: str,
    where: Path,
    otherwise: str = "replace it (--overwrite)",
) -> None:
    """Raise PoolConflictError if a setting (JSON value) differs. otherwise: end of the error's hint."""
    for name, expected, got in differences(dict(found), dict(wanted)):
        raise PoolConflictError(
            f"{what} is already here: field '{name}' differs",
            where=where,
            expected=expected,
            got=got,
            hint=f"finish it with the settings it was started with, choose another output, or {otherwise}",
        )
