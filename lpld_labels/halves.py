"""Converting between float16 and float32 with integer arithmetic.

NumPy converts halves one by one on processors without AVX-512, which takes longer than reading and
decompressing a whole label batch. These do the same in a few vector passes. Inputs must be finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# float32 keeps exponents with bias 127, float16 with bias 15; 2**112 moves between them.
_BIAS_UP = np.float32(2.0**112)
_BIAS_DOWN = np.float32(2.0**-112)
_SMALLEST_NORMAL_HALF = np.float32(2.0**-14)
_LARGEST_HALF = np.float32(65504.0)



def to_float32(values: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    """Return float16 values of any shape as float32, exactly."""
    bits = np.ascontiguousarray(values).view(np.uint16).astype(np.uint32)
    sign = bits & 0x8000
    sign <<= 16
    bits &= 0x7FFF
    bits <<= 13
    # Read as float32 the exponent is 112 too small; multiplying repairs subnormals as well.
    singles = bits.view(np.float32)
    singles *= _BIAS_UP
    bits |= sign
    return singles


def to_float16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """Return float32 values of any shape rounded to the nearest float16, ties to even."""
    values = np.ascontiguousarray(values, np.float32)
    size = np.abs(values)
    if size.size and size.max() > _LARGEST_HALF:
        # Overflow to infinity is the caller's to judge; NumPy does it right.
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    tiny = size < _SMALLEST_NORMAL_HALF
    size *= _BIAS_DOWN
    bits = size.view(np.uint32)
    odd = bits >> 13
    odd &= 1
    odd += 0x0FFF
    bits += odd
    bits >>= 13
    patterns = bits.astype(np.uint16)
    # The upper half of each little-endian word holds the sign.
    patterns |= values.view("<u2").reshape(*values.shape, 2)[..., 1] & 0x8000
    halves = patterns.view(np.float16)
    if tiny.any():
        # Below the normal range the multiplication above may have rounded once already.
        halves[tiny] = values[tiny].astype(np.float16)
    return halves


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
