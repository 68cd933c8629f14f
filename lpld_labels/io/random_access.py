"""Random access to local and remote files.

Local files must be regular files: a pipe or a device could block forever or fill the memory. Files are read,
not memory-mapped: truncating a mapped file kills its readers, and mapping is slower than reading a row group.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa

from lpld_labels.errors import PoolCorruptError

T = TypeVar("T")
_RESTORE = "restore this file"
_ATTEMPTS = 3
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # Do not block on pipes.


def open_regular(path: str | Path) -> tuple[int, int]:
    """Open a regular file, following symlinks. Return (descriptor, size in bytes); the caller closes it.

    Raises OSError, with the reason in `strerror`, if the file is missing or not regular.
    """
    # Check before opening, because opening a device can have side effects.
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
    """Return the content of a regular file, following symlinks. Raises OSError if it exceeds `most` bytes."""
    handle, size = open_regular(path)
    with os.fdopen(handle, "rb") as stream:
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes, but at most {most} are allowed")
        return stream.read(size)


def size_of_regular(path: str | Path) -> int | None:
    """Return the size of a regular file in bytes, following symlinks, or None if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116  # called for every file of a pool
        _require_regular(status)
    except OSError:
        return None
    return status.st_size


def _require_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device")


class ByteSource(Protocol):
    """An open file. where: file name for error messages. size: file size in bytes when it was opened."""

    where: str
    size: int

    def read(self, offset: int, length: int) -> pa.Buffer:
        """Return exactly `length` bytes. Raises PoolCorruptError if the file is too short. Thread-safe."""
        ...

    @property
    def forget(self) -> Callable[[int, int], None] | None:
        """Function that discards corrupt bytes [start, stop) before a retry; None for a local file."""


class LocalFile:
    """A regular local file."""

    forget = None

    def __init__(self, path: str) -> None:
        self.where = path
        self._handle, self.size = open_regular(path)

    def read(self, offset: int, length: int) -> pa.Buffer:
        """Return the bytes in a buffer from Arrow's memory pool, which reuses memory."""
        if offset + length > self.size:
            # Check before allocating memory.
            raise _ends_early(self.where, length, max(self.size - offset, 0))
        buffer = pa.allocate_buffer(length)
        view = memoryview(buffer).cast("B")
        done = 0
        while done < length:
            try:
                count = os.preadv(self._handle, [view[done:]], offset + done)
            except OSError as error:
                raise PoolCorruptError(f"cannot be read: {error}", where=self.where) from None
            if count == 0:
                raise _ends_early(self.where, length, done)
            done += count
        return buffer

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            os.close(handle)


class MemoryFile:
    """An in-memory file."""

    forget = None

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        self.size = len(data)
        self._data = pa.py_buffer(data)

    def read(self, offset: int, length: int) -> pa.Buffer:
        if offset + length > self.size:
            raise _ends_early(self.where, length, max(self.size - offset, 0))
        return self._data.slice(offset, length)


def open_file(path: str) -> ByteSource:
    """Open a local file. Raises PoolCorruptError if it is missing or not a regular file."""
    try:
        return LocalFile(path)
    except FileNotFoundError:
        raise PoolCorruptError("file is missing", where=path, hint="restore it or rebuild the pool") from None
    except OSError as error:
        raise PoolCorruptError(f"cannot be opened: {error.strerror}", where=path, hint=_RESTORE) from None


def retry_corrupt(read: Callable[[], T], forget: Callable[[], None] = lambda: None) -> T:
    """Return the result of `read`. After a PoolCorruptError, call `forget` and retry; at most 3 calls."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except PoolCorruptError:
            forget()
    return read()


def _ends_early(where: str, expected: int, got: int) -> PoolCorruptError:
    return PoolCorruptError(
        "file ends early", where=where, expected=f"{expected} more bytes", got=got, hint=_RESTORE
    )
