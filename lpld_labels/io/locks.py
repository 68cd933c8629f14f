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

from lpld_labels.errors import PoolConflictError
from lpld_labels.io.storage import write_errors

# Some file systems know no locks, or none for directories; there one writer at a time is up to the user.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL)


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
    """Hold the lock of a file; its directory is created if it is not there."""
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


@contextlib.contextmanager
def locked_directory(directory: Path, *, shared: bool = False) -> Iterator[int]:
    """Make and lock a directory, and give its descriptor; empty at the end, it goes.

    shared: others may share the lock. Whoever else wants it is refused at once.
    """
    made = [folder for folder in (directory, *directory.parents) if not os.path.lexists(folder)]
    descriptor = _locked_descriptor(directory, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield descriptor
    finally:
        for folder in dict.fromkeys([directory, *made]):
            with contextlib.suppress(OSError):
                folder.rmdir()
        os.close(descriptor)


def _locked_descriptor(directory: Path, kind: int) -> int:
    while True:
        with write_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        if not try_lock(descriptor, kind):
            os.close(descriptor)
            raise PoolConflictError(
                "another process is writing here",
                where=directory,
                hint="wait until it is done, or stop it; then run the same command again",
            )
        # Whoever had the lock may have deleted the directory.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), directory.stat()):
                return descriptor
        os.close(descriptor)


def try_lock(descriptor: int, kind: int) -> bool:
    """Lock an open file or directory without waiting; return False if another process has it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def in_use(file: Path) -> bool:
    """Whether some process holds the lock of a file; not so where its directory is gone."""
    try:
        FileLock(file).release()
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False
