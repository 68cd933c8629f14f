"""Reading ranges of files elsewhere, and knowing in advance which come next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa

_GAP = 16 * 1024
"""Bytes between two ranges that are cheaper to fetch than a request of their own."""


class Range(NamedTuple):
    """Bytes [start, stop) of a file."""

    path: str
    start: int
    stop: int


class Ranges(Protocol):
    """Where ranges come from."""

    def read(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Return bytes [start, stop) of a file."""
        ...

    def forget(self, path: str, start: int, stop: int) -> None:
        """Do not give these bytes again: they are not what they should be. The next read fetches them."""
        ...

    def expect(self, ranges: Iterable[Range]) -> None:
        """Learn what will be read next, in this order, to fetch it in large requests, several at a time."""
        ...

    def close(self) -> None:
        """Stop fetching and let go of what is held."""
        ...


def coalesced(ranges: Iterable[Range], limit: int) -> Iterator[Range]:
    """Join ranges that follow each other closely in one file, up to `limit` bytes."""
    joined: Range | None = None
    for one in ranges:
        if (
            joined is not None
            and one.path == joined.path
            and joined.start <= one.start <= joined.stop + _GAP
            and one.stop - joined.start <= limit
        ):
            joined = joined._replace(stop=max(joined.stop, one.stop))
            continue
        if joined is not None:
            yield joined
        joined = one
    if joined is not None:
        yield joined
