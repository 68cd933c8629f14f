"""What all codecs share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import need
from .schema import Node

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Decoded:
    """Labels of one batch and the codec's canonical bytes, in pieces."""

    labels: Floats
    canonical: tuple[bytes, ...]


@dataclass(frozen=True)
class Part:
    """Payload columns of a row group, and which rows of them a batch has."""

    file: str
    columns: dict[str, Any]
    first: int
    rows: int  # of the batch, not of the file

    def blob(self, name: str) -> bytes:
        """Give a binary value of a codec with one row per batch, never null."""
        value = self.columns[name][self.first]
        assert isinstance(value, bytes)
        return value

    def optional_blob(self, name: str) -> bytes | None:
        """Give a binary value that may be null."""
        values, there = self.columns[name]
        if not there[self.first]:
            return None
        value = values[int(np.count_nonzero(there[: self.first]))]
        assert isinstance(value, bytes)
        return value

    def array(self, name: str) -> NDArray[Any]:
        """Give the batch's rows of a codec with one row per view."""
        return np.asarray(self.columns[name][self.first : self.first + self.rows])

    def finite(self, values: NDArray[Any], name: str) -> None:
        """Refuse NaN and infinity."""
        need(np.isfinite(values).all(), self.file, name, "NaN or infinite")


class Codec(Protocol):
    """How labels are stored."""

    per_view: bool
    nodes: tuple[Node, ...]

    def identity(self) -> bytes:
        """Give the identity bytes."""

    def decode(self, part: Part) -> Decoded:
        """Decode one batch."""


def little(values: NDArray[Any]) -> bytes:
    """Give an array's bytes, row by row, little endian."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()


def join(pieces: Iterable[bytes]) -> bytes:
    """Put pieces together (for tests and small batches)."""
    return b"".join(pieces)
