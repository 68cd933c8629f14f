"""One file of a pool elsewhere, for those who read bytes of files."""

from __future__ import annotations

import pyarrow as pa

from lpld_labels.errors import PoolCorruptError
from lpld_labels.io.ranges import Ranges

_NOTHING = pa.py_buffer(b"")


class RemoteFile:
    """Any span of a file of known size (see `DistantSource`). Nothing is asked for until it is read."""

    def __init__(self, ranges: Ranges, path: str, size: int, *, where: str) -> None:
        self.where = where
        self.size = size
        self._ranges = ranges
        self._path = path
        self._held: tuple[int, pa.Buffer] = (0, _NOTHING)

    def hold(self, start: int, stop: int) -> None:
        """Fetch bytes to be read next."""
        self._held = (start, self._fetched(start, stop))

    def forget(self, start: int, stop: int) -> None:
        """Fetch these bytes anew."""
        self._held = (0, _NOTHING)
        self._ranges.forget(self._path, start, stop)

    def read(self, offset: int, length: int) -> pa.Buffer:
        """Return bytes that are held, or fetch them."""
        first, held = self._held
        if first <= offset and offset + length <= first + held.size:
            return held.slice(offset - first, length)
        return self._fetched(offset, offset + length)

    def _fetched(self, start: int, stop: int) -> pa.Buffer:
        if not 0 <= start <= stop <= self.size:
            raise PoolCorruptError("span lies outside the file", where=self.where, got=(start, stop))
        try:
            return self._ranges.read(self._path, start, stop)
        except FileNotFoundError:
            raise PoolCorruptError("file is missing", where=self.where, hint="restore this file") from None
