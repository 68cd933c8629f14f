"""Converting between float16 and float32 with integer arithmetic, in memory that is already mapped.

NumPy converts halves one by one on processors without AVX-512, which takes longer than reading and
decompressing a whole label batch. These do the same in a few vector passes. Inputs must be finite.

The C library maps fresh pages for every array of more than 128 KB and returns them when it is freed. Zeroing
them again costs more than most of what is done to a label batch, so large arrays come from Arrow's memory
pool, which keeps its pages.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.format import arrow

# float32 keeps exponents with bias 127, float16 with bias 15; 2**112 moves between them.
_BIAS_UP = np.float32(2.0**112)
_BIAS_DOWN = np.float32(2.0**-112)
_SMALLEST_NORMAL = np.float32(2.0**-14)
_INFINITE = np.float32(65520.0)
# Temporaries of this many values are reused from the heap instead of being mapped and zeroed anew.
_BLOCK = 24_000


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised writable array, like `numpy.empty`, from Arrow's memory pool."""
    kind = np.dtype(dtype)
    sides = (shape,) if isinstance(shape, int) else shape
    buffer = pa.allocate_buffer(math.prod(sides) * kind.itemsize)
    return arrow.values_of(buffer, kind).reshape(sides)


def to_float32(values: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    """Return float16 values of any shape as float32, exactly."""
    source = np.ascontiguousarray(values).view(np.uint16).reshape(-1)
    target = empty(source.size, np.float32)
    for start in range(0, source.size, _BLOCK):
        bits = source[start : start + _BLOCK].astype(np.uint32)
        sign = bits & 0x8000
        sign <<= 16
        bits &= 0x7FFF
        bits <<= 13
        # Read as float32 the exponent is 112 too small; multiplying repairs subnormals as well.
        out = target[start : start + _BLOCK]
        np.multiply(bits.view(np.float32), _BIAS_UP, out=out)
        pattern = out.view(np.uint32)
        pattern |= sign
    return target.reshape(values.shape)


def to_float16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """Return float32 values of any shape rounded to the nearest float16, ties to even."""
    source = np.ascontiguousarray(values, np.float32).reshape(-1)
    target = empty(source.size, np.float16)
    for start in range(0, source.size, _BLOCK):
        _round_block(source[start : start + _BLOCK], target[start : start + _BLOCK])
    return target.reshape(values.shape)


def _round_block(values: npt.NDArray[np.float32], halves: npt.NDArray[np.float16]) -> None:
    bits = (values * _BIAS_DOWN).view(np.uint32)
    round_up = bits >> 13
    round_up &= 1
    round_up += 0x0FFF
    bits += round_up
    bits >>= 13
    bits &= 0x7FFF
    pattern = halves.view(np.uint16)
    pattern[...] = bits
    # The upper half of each little-endian word holds the sign.
    pattern |= values.view("<u2")[1::2] & 0x8000
    # Below the normal range the multiplication has rounded once already, and above it a half is
    # infinite; NumPy does these few right.
    size = np.abs(values)
    odd = size < _SMALLEST_NORMAL
    odd |= size >= _INFINITE
    if odd.any():
        with np.errstate(over="ignore"):
            halves[odd] = values[odd].astype(np.float16)


def converted(values: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the values in another float dtype; the same array if it has that dtype already."""
    wanted = np.dtype(dtype)
    if values.dtype == wanted:
        return values
    if values.dtype == np.float16 and wanted == np.float32:
        return to_float32(values)
    if values.dtype == np.float32 and wanted == np.float16:
        return to_float16(values)
    return values.astype(wanted)
