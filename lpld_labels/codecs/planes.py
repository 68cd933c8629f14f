"""Packing integers and floats as zstd-compressed byte planes.

Plane k holds byte k (0 = least significant) of every value. Each plane is a zstd frame of its own,
because one entropy table cannot serve both exponents and mantissas; the blob is the frames one after
the other, each behind its length (uint32).
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zstandard

from lpld_labels.codecs.zstd_frames import decompressed
from lpld_labels.errors import PoolCorruptError

ZSTD_LEVEL = 9
_LENGTH = struct.Struct("<I")


def pack_planes(values: npt.NDArray[Any]) -> bytes:
    """Return an array's values, in row-major order and little endian, as compressed byte planes."""
    flat = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(-1)
    planes = flat.view(np.uint8).reshape(-1, flat.dtype.itemsize)
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    frames = [compressor.compress(planes[:, k].tobytes()) for k in range(flat.dtype.itemsize)]
    return b"".join([_LENGTH.pack(len(frame)) + frame for frame in frames])


def unpack_planes(
    blob: pa.Buffer, dtype: npt.DTypeLike, shape: tuple[int, ...], *, where: str
) -> npt.NDArray[Any]:
    """Return the array that `pack_planes` was given; never more bytes than it can have."""
    kind = np.dtype(dtype).newbyteorder("<")
    count = int(np.prod(shape))
    planes = np.empty((count, kind.itemsize), np.uint8)
    start = 0
    for k in range(kind.itemsize):
        if start + _LENGTH.size > blob.size:
            raise PoolCorruptError("label payload ends early", where=where, got=f"{k} byte planes")
        (length,) = _LENGTH.unpack(memoryview(blob)[start : start + _LENGTH.size])
        start += _LENGTH.size
        if start + length > blob.size:
            raise PoolCorruptError("byte plane reaches beyond the label payload", where=where, got=length)
        planes[:, k] = decompressed(blob.slice(start, length), count, where=where)
        start += length
    if start != blob.size:
        raise PoolCorruptError(
            "label payload has bytes left over", where=where, expected=start, got=blob.size
        )
    values: npt.NDArray[Any] = planes.reshape(-1).view(kind)
    return values.reshape(shape)
