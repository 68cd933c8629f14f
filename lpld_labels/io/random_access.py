"""Random access to files, local or remote.

Only regular local files are opened: a pipe or a device could block for ever or fill the memory. They are
read, not mapped: truncating a mapped file kills its readers, and mapping is slower than reading a row group.
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
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""O_NONBLOCK: do not wait for a writer if a pipe has replaced the file meanwhile."""


def open_regular(path: str | Path) -> tuple[int, int]:
    """Open a regular file, links followed; return a handle for the caller to close, and the size.

    Raises OSError, with the reason in `strerror`, if it is missing or not a regular file.
    """
    # Checked before it is opened: opening a device can have an effect.
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
    """Return the bytes of a regular file, links followed; OSError also if it has more than `most` bytes."""
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


class ByteSource(Protocol):
    """An open file. where: its name in messages. size: in bytes, when it was opened."""

    where: str
    size: int

    def read(self, offset: int, length: int) -> pa.Buffer:
        """Return exactly these bytes; PoolCorruptError if there are fewer. Threads may share a source."""
        ...

    @property
    def forget(self) -> Callable[[int, int], None] | None:
        """Makes a remote file fetch corrupt bytes [start, stop) again; None for a local file."""


class LocalFile:
    """A regular local file."""

    forget = None

    def __init__(self, path: str) -> None:
        self.where = path
        self._handle, self.size = open_regular(path)

    def read(self, offset: int, length: int) -> pa.Buffer:
        """Return these bytes in memory of Arrow's pool, which is reused."""
        if offset + length > self.size:
            # Before allocating memory.
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
    """A file whose bytes are in memory."""

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
    """Open a local file; PoolCorruptError if it is missing or not a regular file."""
    try:
        return LocalFile(path)
    except FileNotFoundError:
        raise PoolCorruptError("file is missing", where=path, hint="restore it or rebuild the pool") from None
    except OSError as error:
        raise PoolCorruptError(f"cannot be opened: {error.strerror}", where=path, hint=_RESTORE) from None


def retry_corrupt(read: Callable[[], T], forget: Callable[[], None] = lambda: None) -> T:
    """Return the result of a remote read; corrupt bytes are forgotten and fetched again."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except PoolCorruptError:
            forget()
    return read()


def _ends_early(where: str, expected: int, got: int) -> PoolCorruptError:
    return PoolCorruptError(
        "file ends early", where=where, expected=f"{expected} bytes more", got=got, hint=_RESTORE
    )
