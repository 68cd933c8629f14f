"""Typed wrappers of pyarrow calls whose stubs are missing or wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    Array: TypeAlias = pa.Array[Any]
    Column: TypeAlias = pa.ChunkedArray[Any]
else:
    Array, Column = pa.Array, pa.ChunkedArray

Values = npt.NDArray[Any]


def filled(column: Column, value: float) -> Values:
    """Return a column as a NumPy array in which `value` replaces nulls."""
    return np.asarray(cast("Any", column).fill_null(value).to_numpy())


def list_offsets(lists: Array) -> npt.NDArray[np.int32]:
    """Return the offsets of n lists in their flat values: n starts and the end of the last, int32 [n + 1]."""
    return np.asarray(cast("Any", lists).offsets.to_numpy())


def flattened(lists: Array | Column) -> Values:
    """Return the concatenated values of a list column."""
    whole = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    return np.asarray(cast("Any", whole).flatten().to_numpy())


def take(array: Array, rows: npt.NDArray[np.integer[Any]]) -> Array:
    """Return a copy of the given rows of an array."""
    return array.take(cast("Any", pa.array(rows)))


def values_of(buffer: pa.Buffer | None, dtype: npt.DTypeLike) -> Values:
    """Return the memory of a buffer as an array of `dtype`."""
    return np.frombuffer(cast("Any", buffer), dtype)


def integers(column: Column | Array) -> list[int]:
    """Return the values of an integer column that has no nulls."""
    return cast("list[int]", column.to_pylist())


def raw_texts(column: Column | Array) -> list[bytes]:
    """Return strings as bytes, which may be invalid UTF-8. column: a string column without nulls."""
    return binaries(cast("Any", column).cast(pa.binary()))


def binaries(column: Column | Array) -> list[bytes]:
    """Return the values of a binary column that has no nulls."""
    return cast("list[bytes]", column.to_pylist())


def field_of(structs: Column | Array, name: str) -> Array:
    """Return one field of a column of structs."""
    whole = structs.combine_chunks() if isinstance(structs, pa.ChunkedArray) else structs
    return cast("Array", cast("Any", whole).field(name))


def value_bytes(array: Array) -> int:
    """Return the number of bytes that an array's values take in a Parquet page."""
    kind = array.type
    if pa.types.is_binary(kind):
        ends = values_of(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
        return int(ends[-1] - ends[0]) + 4 * len(array)
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return flattened(array).nbytes
    return len(array) * int(kind.bit_width) // 8
