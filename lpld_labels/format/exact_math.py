"""exp and log in a fixed sequence of float64 operations, the same bits on every machine.

Mathematical libraries differ in the last bit of these two. Crops are drawn through them, and whoever
draws a batch again must get the same crops, so SPEC.md ("Elementary functions") gives the operations and
this module follows them one by one. Both are within two units of the last place of the true value.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# ln 2 in two parts: the first has so few bits that its product with a small integer is exact.
_LN2_HIGH = float.fromhex("0x1.62e42feep-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_PER_LN2 = 1.4426950408889634
_SQRT_HALF = 0.7071067811865476


def exp(x: FloatArray) -> FloatArray:
    """Return e**x for float64 of any shape, -700 to 700."""
    twos = np.rint(x * _PER_LN2)
    rest = (x - twos * _LN2_HIGH) - twos * _LN2_LOW
    total = np.full_like(rest, 1 / math.factorial(13))
    for n in range(12, -1, -1):
        # Two operations: a fused multiply-add would round once where the format rounds twice.
        total *= rest
        total += 1 / math.factorial(n)
    result: FloatArray = np.ldexp(total, twos.astype(np.int32))
    return result


def log(x: float) -> float:
    """Return the natural logarithm of a number above 0."""
    mantissa, twos = math.frexp(x)
    if mantissa < _SQRT_HALF:
        mantissa, twos = 2 * mantissa, twos - 1
    ratio = (mantissa - 1) / (mantissa + 1)
    square = ratio * ratio
    total = 1 / 23
    for n in range(21, 0, -2):
        total = total * square + 1 / n
    return twos * _LN2_HIGH + (twos * _LN2_LOW + (2 * ratio) * total)
