"""Files that somebody else has put there: opened only if they are files, read only if they are small enough.

A name may as well be a pipe that nobody writes to, a device without end or a link to either: opening one can
hang for ever, and reading one can fill the memory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""A pipe that took the file's place since it was looked at is opened without waiting for a writer."""


def open_regular(path: str | Path) -> tuple[int, int]:
    """Open a regular file to read, links followed; return the handle, which is the caller's, and its size.

    Raises OSError, with the reason in `strerror`, for what is not there or not a file.
    """
    # Looked at before it is opened: on a device, even that can have an effect.
    _require_regular(os.stat(path))  # noqa: PTH116  # called for every file that a reader opens
    handle = os.open(path, _FLAGS)
    try:
        status = os.fstat(handle)
        _require_regular(status)
    except OSError:
        os.close(handle)
        raise
    return handle, status.st_size


def read_regular(path: str | Path, *, most: int) -> bytes:
    """Return the bytes of a regular file, links followed.

    most: bytes that it may have.
    Raises OSError, with the reason in `strerror`, for what is not there, not a file or too large.
    """
    handle, size = open_regular(path)
    with os.fdopen(handle, "rb") as stream:
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and {most} are allowed")
        return stream.read(size)


def size_of_regular(path: str | Path) -> int | None:
    """Return the size of a regular file, links followed, or None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116  # asked for every file of a pool
        _require_regular(status)
    except OSError:
        return None
    return status.st_size


def _require_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device")
