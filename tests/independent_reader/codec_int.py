"""Codecs `int8`, `int6` and `int4`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .codec_base import Decoded, Part, little
from .errors import need
from .fields import Fields
from .schema import FIXED, FLOAT, Node, column

_SLICE_BITS = 2**24


def unpack_codes(packed: NDArray[np.uint8], bits: int, classes: int, file: str) -> NDArray[np.uint8]:
    """Unpack rows of codes; left-over bits must be 0."""
    if bits == 8:
        return packed
    out = np.zeros((len(packed), classes), np.uint8)
    weights = (1 << np.arange(bits)).astype(np.uint8)
    step = max(1, _SLICE_BITS // (classes * bits))
    for start in range(0, len(packed), step):
        loose = np.unpackbits(packed[start : start + step], axis=1, bitorder="little")
        need(not loose[:, classes * bits :].any(), file, "codes", "left-over bits are not 0")
        used = loose[:, : classes * bits].reshape(len(loose), classes, bits)
        out[start : start + step] = (used * weights).sum(axis=2, dtype=np.uint8)
    return out


class IntCodec:
    """One scale and offset per view, n bits per class."""

    per_view = True

    def __init__(self, bits: int, parameters: Fields, classes: int) -> None:
        """Take no parameters."""
        parameters.finish(ignorable=False)
        self.bits, self.classes = bits, classes
        length = -(-classes * bits // 8)
        self.nodes: tuple[Node, ...] = (
            column("scale", FLOAT),
            column("offset", FLOAT),
            column("codes", FIXED, length=length),
        )

    def identity(self) -> bytes:
        """Give none."""
        return b""

    def decode(self, part: Part) -> Decoded:
        """Decode one batch."""
        scale, offset = part.array("scale"), part.array("offset")
        part.finite(scale, "scale")
        part.finite(offset, "offset")
        need((scale >= 0).all(), part.file, "scale", "below 0")
        codes = unpack_codes(np.asarray(part.array("codes"), np.uint8), self.bits, self.classes, part.file)
        with np.errstate(over="ignore"):
            labels = codes.astype(np.float32)
            labels *= scale.astype(np.float32)[:, None]
            labels += offset.astype(np.float32)[:, None]
        return Decoded(labels, (little(scale), little(offset), codes.tobytes()))
