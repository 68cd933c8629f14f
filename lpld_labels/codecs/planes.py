"""Packing integers and floats as zstd-compressed byte planes.

Plane k holds byte k (0 = least significant) of every value. Each plane is a zstd frame of its own,
because one entropy table cannot serve both exponents and mantissas; the blob is the frames one after
the other, which any zstd decoder turns into the planes one after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zstandard

from lpld_labels.errors import PoolCorruptError

ZSTD_LEVEL = 9


def pack_planes(values: npt.NDArray[Any]) -> bytes:
    """Return an array's values, in row-major order and little endian, as compressed byte planes."""
    flat = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(-1)
    planes = flat.view(np.uint8).reshape(-1, flat.dtype.itemsize)
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    return b"".join(compressor.compress(planes[:, k].tobytes()) for k in range(flat.dtype.itemsize))


def unpack_planes(
    blob: pa.Buffer, dtype: npt.DTypeLike, shape: tuple[int, ...], *, where: str
) -> npt.NDArray[Any]:
    """Return the array that `pack_planes` was given; never more bytes than it can have."""
    kind = np.dtype(dtype).newbyteorder("<")
    size = int(np.prod(shape)) * kind.itemsize
    try:
        with zstandard.ZstdDecompressor().stream_reader(blob, read_across_frames=True) as stream:
            data = stream.read(size + 1)
    except zstandard.ZstdError as error:
        raise PoolCorruptError(f"label payload does not decompress: {error}", where=where) from None
    if len(data) != size:
        got = f"{'more than ' if len(data) > size else ''}{min(len(data), size)} bytes"
        raise PoolCorruptError(
            "label payload has the wrong length", where=where, expected=f"{size} bytes", got=got
        )
    planes = np.frombuffer(data, np.uint8).reshape(kind.itemsize, -1)
    values: npt.NDArray[Any] = np.ascontiguousarray(planes.T).view(kind)
    return values.reshape(shape)
