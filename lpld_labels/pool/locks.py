"""Locks on directories: held by one process at a time, gone with it, and no file to leave behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class Hold:
    """A lock on a directory, from now until `release`; raises BlockingIOError if another process has it."""

    def __init__(self, directory: Path, *, wait: bool = False) -> None:
        self._descriptor = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            self.release()
            raise

    def is_of(self, directory: Path) -> bool:
        """Whether the directory is still the one that was locked."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), directory.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def locked(directory: Path, *, make: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold the lock on a directory; with `make`, create it first if it is not there."""
    while True:
        if make:
            directory.mkdir(parents=True, exist_ok=True)
        try:
            hold = Hold(directory, wait=wait)
        except FileNotFoundError:
            if make:
                continue
            raise
        if hold.is_of(directory):
            break
        hold.release()
    try:
        yield
    finally:
        hold.release()


def in_use(directory: Path) -> bool:
    """Whether some process holds the lock on a directory."""
    try:
        Hold(directory).release()
    except BlockingIOError:
        return True
    return False
