"""Codec `topk`: the largest labels of each row and one level for all others."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from .blobs import byte_planes
from .codec_base import Decoded, Part, little
from .errors import need
from .fields import Fields
from .schema import BYTES, Node, column

_MISSING = {"logits": -10000.0, "probabilities": 0.0}


def index_dtype(largest: int) -> str:
    """Give the type of gaps for C classes, or of `order` for k entries."""
    return "<u4" if largest > 65536 else "<u2"


def classes_of_gaps(part: Part, name: str, count: int, classes: int) -> NDArray[np.int64]:
    """Decode gaps into rising classes, [rows, count]."""
    gaps = byte_planes(part.blob(name), index_dtype(classes), (part.rows, count), part.file, name)
    out = np.cumsum(gaps, axis=1, dtype=np.int64) + np.arange(count)
    need((out[:, -1] < classes).all(), part.file, name, "classes run past the last class")
    return out


class TopkCodec:
    """The k largest labels."""

    per_view = False

    def __init__(self, parameters: Fields, classes: int, label_kind: str) -> None:
        """Take the parameters."""
        self.classes = classes
        self.k = parameters.integer("k", 1, classes)
        self.bits = parameters.integer("value_bits", 8, 32)
        need(self.bits in (8, 16, 32), parameters.file, parameters.name("value_bits"), "not 8, 16 or 32")
        kind = parameters.string("label_kind")
        need(kind == label_kind, parameters.file, parameters.name("label_kind"), "not the manifest's")
        parameters.finish(ignorable=False)
        self.missing = _MISSING[label_kind]
        names = ("gaps", "values", *(("scale", "offset") if self.bits == 8 else ()))
        optional = tuple(column(name, BYTES, optional=True) for name in ("tail", "order"))
        self.nodes: tuple[Node, ...] = (*(column(name, BYTES) for name in names), *optional)

    def identity(self) -> bytes:
        """Give k and value_bits."""
        return struct.pack("<IB", self.k, self.bits)

    def _values(self, part: Part) -> tuple[NDArray[np.float32], list[bytes]]:
        """Decode the values and give their canonical bytes."""
        shape = (part.rows, self.k)
        blob = part.blob("values")
        if self.bits != 8:
            values = byte_planes(blob, f"<f{self.bits // 8}", shape, part.file, "values")
            return values.astype(np.float32), [little(values)]
        codes = byte_planes(blob, "|u1", shape, part.file, "values")
        scale = byte_planes(part.blob("scale"), "<f2", shape[:1], part.file, "scale")
        offset = byte_planes(part.blob("offset"), "<f2", shape[:1], part.file, "offset")
        part.finite(scale, "scale")
        part.finite(offset, "offset")
        need((scale >= 0).all(), part.file, "scale", "below 0")
        product = codes.astype(np.float32) * scale.astype(np.float32)[:, None]
        values = product + offset.astype(np.float32)[:, None]
        return values, [little(scale), little(offset), codes.tobytes()]

    def _check_order(self, part: Part) -> None:
        """Refuse an order that is no permutation."""
        blob = part.optional_blob("order")
        if blob is None:
            return
        dtype = index_dtype(self.k)
        shifts = byte_planes(blob, dtype, (part.rows, self.k), part.file, "order").astype(np.int64)
        ranks = (shifts + np.arange(self.k)) % (2**32 if dtype == "<u4" else 2**16)
        ranks.sort(axis=1)
        need((ranks == np.arange(self.k)).all(), part.file, "order", "no permutation")

    def decode(self, part: Part) -> Decoded:
        """Decode one batch."""
        classes = classes_of_gaps(part, "gaps", self.k, self.classes)
        values, canonical = self._values(part)
        part.finite(values, "values")
        canonical.insert(0, little(classes.astype(np.int32)))
        labels = np.full((part.rows, self.classes), self.missing, np.float32)
        blob = part.optional_blob("tail")
        if blob is not None:
            tail = byte_planes(blob, "<f4", (part.rows,), part.file, "tail")
            part.finite(tail, "tail")
            canonical.append(little(tail))
            labels[:] = tail[:, None]
        self._check_order(part)
        np.put_along_axis(labels, classes, values, axis=1)
        return Decoded(labels, tuple(canonical))
