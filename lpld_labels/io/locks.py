"""Locks: a file in a directory, held by one process at a time, let go when it ends however it ends.

The file belongs to its directory and is deleted with it. Whoever then gets the lock of the deleted file
notices and tries again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

# Some network file systems know no locks; there, as ever, one writer at a time is up to the user.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class FileLock:
    """The lock of a file, from now until `release`; raises BlockingIOError if another process has it."""

    def __init__(self, file: Path, *, wait: bool = False) -> None:
        # A link would have the lock taken elsewhere, or a file made there.
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                self.release()
                raise

    def is_of(self, file: Path) -> bool:
        """Whether the file is still the one that was locked."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), file.lstat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def locked(file: Path, *, wait: bool = True) -> Iterator[None]:
    """FileLock the lock of a file; its directory is created if it is not there."""
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            hold = FileLock(file, wait=wait)
        except FileNotFoundError:
            continue
        if hold.is_of(file):
            break
        hold.release()
    try:
        yield
    finally:
        hold.release()


def in_use(file: Path) -> bool:
    """Whether some process holds the lock of a file; not so where its directory is gone."""
    try:
        FileLock(file).release()
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False
