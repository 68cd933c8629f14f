"""Reading a file that somebody else has put there: only if it is one, and only if it is small enough.

A name may as well be a pipe that nobody writes to, a device without end or a link to either: opening one can
hang for ever, and reading one can fill the memory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, *, most: int) -> bytes:
    """Return the bytes of a regular file, links followed.

    most: bytes that it may have.
    Raises OSError, with the reason in `strerror`, for what is not there, not a file or too large.
    """
    # Looked at before it is opened: on a device, even that can have an effect.
    _checked_size(path.stat(), most)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as stream:
        return stream.read(_checked_size(os.fstat(stream.fileno()), most))


def _checked_size(status: os.stat_result, most: int) -> int:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device")
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, and {most} are allowed")
    return status.st_size
