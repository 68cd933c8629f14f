"""Bytes of a pool's files, wherever they are: any span of a file, or an error that names it.

Local files are read, not mapped: a mapped file that somebody cuts off ends the process that looks at it, and
mapping a file takes longer than reading a row group of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import pyarrow as pa

from lpld_labels.errors import PoolCorruptError
from lpld_labels.io.regular_file import open_regular

T = TypeVar("T")
_RESTORE = "restore this file"
_ATTEMPTS = 3


class ByteSource(Protocol):
    """An open file. where: its name in messages. size: its bytes when it was opened."""

    where: str
    size: int

    def read(self, offset: int, length: int) -> pa.Buffer:
        """Return exactly these bytes; PoolCorruptError if there are fewer. Threads may share a source."""
        ...


@runtime_checkable
class RemoteSource(ByteSource, Protocol):
    """A file elsewhere: every read is a request, and bytes may be changed on their way."""

    def forget(self, start: int, stop: int) -> None:
        """Fetch these bytes anew when they are read next: they were damaged."""
        ...


class LocalFile:
    """A regular file of this machine."""

    def __init__(self, path: str) -> None:
        self.where = path
        self._handle, self.size = open_regular(path)

    def read(self, offset: int, length: int) -> pa.Buffer:
        """Return these bytes in memory of Arrow's pool, which is warm."""
        if offset + length > self.size:
            # Before memory is taken for what cannot be read.
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


class StoredFile:
    """Bytes in memory, or a file that Arrow opened."""

    def __init__(self, file: pa.NativeFile, where: str) -> None:
        self.where = where
        self._file = file
        self.size = int(file.size())

    def read(self, offset: int, length: int) -> pa.Buffer:
        """Return these bytes."""
        try:
            data: bytes = cast("Any", self._file).read_at(length, offset)
        except OSError as error:
            raise PoolCorruptError(f"cannot be read: {error}", where=self.where) from None
        if len(data) != length:
            raise _ends_early(self.where, length, len(data))
        return pa.py_buffer(data)


def open_file(path: str) -> ByteSource:
    """Open a file of this machine for random access; a missing one is a corrupt pool."""
    try:
        return LocalFile(path)
    except FileNotFoundError:
        raise PoolCorruptError("file is missing", where=path, hint="restore it or rebuild the pool") from None
    except OSError as error:
        raise PoolCorruptError(f"cannot be opened: {error.strerror}", where=path, hint=_RESTORE) from None


def as_distant(file: ByteSource) -> RemoteSource | None:
    """Return a file that is elsewhere; None for one of this machine."""
    # Asking a protocol takes longer than opening the file.
    if isinstance(file, LocalFile | StoredFile):
        return None
    return file if isinstance(file, RemoteSource) else None


def once_more(read: Callable[[], T], forget: Callable[[], None]) -> T:
    """Return what a read of bytes from elsewhere gives; if they are damaged, forget and read them again."""
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
