"""A few classes of each row: picking the largest, and storing which they are.

Which classes is a set, so each row's indices are kept in rising order and stored as gaps: the first
index, then each index less its predecessor less 1. Gaps are small numbers, which byte planes compress
to little more than the information of the set.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs.planes import pack_planes, unpack_planes
from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.records import IntArray, LabelArray


def largest(labels: LabelArray, k: int) -> npt.NDArray[np.bool_]:
    """Return a mask [B, C] of the k largest values per row; of equal values the lower class is kept."""
    classes = labels.shape[1]
    threshold = np.partition(labels, classes - k, axis=1)[:, classes - k, None]
    above = labels > threshold
    ties = labels == threshold
    wanted = k - above.sum(axis=1, keepdims=True)
    return np.asarray(above | (ties & (np.cumsum(ties, axis=1) <= wanted)))


def members(mask: npt.NDArray[np.bool_], k: int) -> IntArray:
    """Return the classes of each row where a mask [B, C] with k of them per row is true: int32 [B, k]."""
    return np.nonzero(mask)[1].reshape(len(mask), k).astype(np.int32)


def largest_classes(labels: LabelArray, k: int) -> IntArray:
    """Return the classes of the k largest values per row, rising: int32 [B, k]."""
    if k == 1:
        return np.asarray(labels.argmax(axis=1)[:, None], np.int32)
    return members(largest(labels, k), k)


def pack_sets(indices: IntArray, classes: int) -> bytes:
    """Return class indices [B, k], rising in each row, as one blob."""
    gaps = np.diff(indices, axis=1, prepend=-1) - 1
    return pack_planes(gaps.astype(_gap_dtype(classes)))


def unpack_sets(blob: pa.Buffer, shape: tuple[int, int], classes: int, *, where: str) -> IntArray:
    """Undo `pack_sets`: int32 [B, k]; an index outside the classes is refused."""
    gaps = unpack_planes(blob, _gap_dtype(classes), shape, where=where).astype(np.int64)
    indices = np.cumsum(gaps + 1, axis=1) - 1
    if indices.size and indices[:, -1].max() >= classes:
        raise PoolCorruptError(
            "stored class index out of range",
            where=where,
            expected=f"below {classes}",
            got=int(indices[:, -1].max()),
        )
    return indices.astype(np.int32)


def _gap_dtype(classes: int) -> np.dtype[Any]:
    return np.dtype("<u2" if classes <= 1 << 16 else "<u4")
