"""Zstd frames as the format allows them: one frame, its content size known, nothing before or after it.

Decoders of zstd take several frames, skip frames meant to be skipped and believe whatever size a header
claims. What is decompressed here comes from files that may be from anywhere, so a frame is walked first:
a header and a few block headers, which takes microseconds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.errors import PoolCorruptError
from lpld_labels.format import arrow

_MAGIC = b"\x28\xb5\x2f\xfd"
_RLE_BLOCK, _RESERVED_BLOCK = 1, 3


def decompressed(frame: pa.Buffer | memoryview, size: int, *, where: str) -> npt.NDArray[np.uint8]:
    """Return the `size` bytes of a zstd frame; never more, whatever the frame claims."""
    data = memoryview(frame).cast("B")
    try:
        declared, end = _walked(data)
    except (IndexError, ValueError) as error:
        raise PoolCorruptError(f"label payload is no zstd frame: {error}", where=where) from None
    if declared != size:
        raise PoolCorruptError(
            "label payload has the wrong length", where=where, expected=f"{size} bytes", got=declared
        )
    if end != len(data):
        raise PoolCorruptError(
            "label payload is not one zstd frame alone", where=where, expected=f"{end} bytes", got=len(data)
        )
    try:
        plain = pa.Codec("zstd").decompress(frame, size)
    except (pa.ArrowException, OSError) as error:
        raise PoolCorruptError(f"label payload does not decompress: {error}", where=where) from None
    return arrow.values_of(plain, np.uint8)


def _walked(data: memoryview) -> tuple[int, int]:
    """Return the content size that a frame declares, and where it ends; ValueError if it is none."""
    if bytes(data[:4]) != _MAGIC:
        raise ValueError("it begins otherwise")
    descriptor = data[4]
    if descriptor & 3:
        raise ValueError("it needs a dictionary")
    single, checksum = bool(descriptor & 32), bool(descriptor & 4)
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    if width == 0:
        raise ValueError("it does not say how long its content is")
    at = 5 if single else 6
    declared = int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)
    at += width
    last = False
    while not last:
        header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        last, kind, length = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == _RESERVED_BLOCK:
            raise ValueError("it has a block of no known kind")
        at += 3 + (1 if kind == _RLE_BLOCK else length)
    return declared, at + (4 if checksum else 0)
