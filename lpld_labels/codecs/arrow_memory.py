"""Arrays in memory that is warm.

The C library maps fresh pages for every array of more than 128 KB and gives them back when it is freed.
Having the system zero them again costs more than most of what is done to a label batch, so arrays of
that size come from Arrow's memory pool, which hands out pages it already has.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.format import arrow


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array like `numpy.empty`, writable, with whatever values the memory holds."""
    kind = np.dtype(dtype)
    sides = (shape,) if isinstance(shape, int) else shape
    buffer = pa.allocate_buffer(math.prod(sides) * kind.itemsize)
    return arrow.values_of(buffer, kind).reshape(sides)


def converted_copy(values: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the values in another dtype, like `astype`."""
    target = empty(values.shape, dtype)
    np.copyto(target, values, casting="unsafe")
    return target
