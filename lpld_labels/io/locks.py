"""Locks on files and directories. A lock is released when its process ends, even if the process is killed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from lpld_labels.errors import PoolConflictError
from lpld_labels.io.storage import write_errors

# Some file systems cannot lock directories, or even files. On these, users must run one writer at a time.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL)
# O_NOFOLLOW: following a symlink would create or lock a file elsewhere.
_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


def _lock(descriptor: int, operation: int) -> None:
    """Lock an open file. With LOCK_NB, raises BlockingIOError if another process holds the lock."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _open_locked(path: Path, flags: int, operation: int) -> int:
    while True:
        (path if flags == _DIRECTORY else path.parent).mkdir(parents=True, exist_ok=True)
        # Try again if the previous holder of the lock has deleted the file.
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, flags, 0o644)
            try:
                _lock(descriptor, operation)
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


@contextlib.contextmanager
def locked(file: Path, *, wait: bool = True) -> Iterator[None]:
    """Create and lock a file. If the lock is taken: wait for it, or raise BlockingIOError if not `wait`."""
    operation = fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)
    descriptor = _open_locked(file, _FILE, operation)
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_directory(directory: Path, *, shared: bool = False) -> Iterator[int]:
    """Create and lock a directory; yield its file descriptor. On exit, delete the directory if it is empty.

    shared: take a shared lock. Raises PoolConflictError if another process holds a conflicting lock.
    """
    created = [folder for folder in (directory, *directory.parents) if not os.path.lexists(folder)]
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    with write_errors(directory):
        try:
            descriptor = _open_locked(directory, _DIRECTORY, operation)
        except BlockingIOError:
            raise PoolConflictError(
                "another process is using this directory",
                where=directory,
                hint="wait for that process, or stop it; then run the same command again",
            ) from None
    try:
        yield descriptor
    finally:
        for folder in dict.fromkeys([directory, *created]):
            with contextlib.suppress(OSError):
                folder.rmdir()
        os.close(descriptor)


def try_lock(descriptor: int, kind: int) -> bool:
    """Lock an open file or directory without waiting. Return False if another process holds the lock."""
    try:
        _lock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def in_use(file: Path) -> bool:
    """Return whether a process holds the lock on a file; False if the file's directory is missing."""
    try:
        descriptor = os.open(file, _FILE, 0o644)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)
