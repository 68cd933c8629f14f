"""Lossless float labels: `f16` and `f32`, compact or plain.

compact  one row per batch; column ``plane_k`` holds byte k (0 = least significant) of all values, row
         by row, as one zstd frame. Exponent bytes shrink to 70 %; mantissa bytes do not shrink.
plain    one row per view; column ``labels`` is a list of floats that DuckDB and Polars read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs.base import Codec, EncodedLabels, Granularity, Payload, binary_cell, raw_bytes
from lpld_labels.codecs.packing import ZSTD, decompressed
from lpld_labels.errors import InvalidBatchError, PoolCorruptError
from lpld_labels.format import arrow
from lpld_labels.format.digests import CanonicalBytes
from lpld_labels.format.records import LabelArray
from lpld_labels.format.schema import Column

Layout = Literal["compact", "plain"]
_BIAS = np.float32(2.0**112)  # Exponents have bias 127 in float32 and 15 in float16.
_BLOCK = 24_000


@dataclass(frozen=True, kw_only=True)
class _Settings:
    layout: Layout


class _FloatCodec(Codec):
    """Labels stored as IEEE floats of `dtype`, little endian."""

    dtype: np.dtype[Any]
    arrow_type: pa.DataType
    lossless = True
    settings = _Settings

    def __init__(self, *, layout: Layout = "compact") -> None:
        self.layout = layout
        self.granularity: Granularity = "view" if layout == "plain" else "batch"

    @classmethod
    def parse(cls, arguments: Sequence[str], *, label_kind: str) -> Codec | None:
        return {(): cls(), ("plain",): cls(layout="plain")}.get(tuple(arguments))

    @property
    def spec(self) -> str:
        return self.name if self.layout == "compact" else f"{self.name}:{self.layout}"

    def payload_columns(self, classes: int) -> tuple[Column, ...]:
        if self.layout == "plain":
            element = pa.field("element", self.arrow_type, nullable=False)
            return (Column(name="labels", type=pa.list_(element), component="labels"),)
        names = [f"plane_{k}" for k in range(self.dtype.itemsize)]
        return tuple(Column(name=name, type=pa.binary(), component="labels") for name in names)

    def encode(self, labels: LabelArray) -> EncodedLabels:
        values = self._stored(labels)
        canonical = [raw_bytes(values)]
        if self.layout == "plain":
            offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
            column = self.payload_columns(values.shape[1])[0].type
            array = pa.ListArray.from_arrays(offsets, pa.array(values.ravel()), type=column)
            return EncodedLabels(payload={"labels": array}, canonical=canonical)
        words = values.reshape(-1).view(f"<u{self.dtype.itemsize}")
        payload = {}
        for k in range(self.dtype.itemsize):
            # Shifting is twice as fast as strided access.
            plane = (words >> 8 * k if k else words).astype(np.uint8)
            payload[f"plane_{k}"] = binary_cell(ZSTD.fast.compress(plane.data))
        return EncodedLabels(payload=payload, canonical=canonical)

    def _stored(self, labels: LabelArray) -> LabelArray:
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(labels, dtype=self.dtype)
        # float16 input cannot overflow; only a narrowing conversion needs the check.
        if labels.dtype.itemsize > self.dtype.itemsize and not np.isfinite(values).all():
            raise InvalidBatchError(
                f"label too large for codec '{self.name}'",
                expected=f"at most {np.finfo(self.dtype).max}",
                got=float(np.abs(labels).max()),
                hint="use codec 'f32'",
            )
        return values

    def decode(
        self, payload: Payload, *, rows: int, classes: int, dtype: npt.DTypeLike = np.float32
    ) -> LabelArray:
        values = self._plain(payload) if self.layout == "plain" else self._merged(payload, rows * classes)
        if values.size != rows * classes:
            raise PoolCorruptError(
                "label payload has the wrong length", expected=f"{rows * classes} values", got=values.size
            )
        return converted(values.reshape(rows, classes), dtype)

    def _plain(self, payload: Payload) -> LabelArray:
        lists = payload["labels"]
        # `lists` may be a slice. `values` ignores that; flatten() would respect the slice, but copy.
        if pa.types.is_fixed_size_list(lists.type):
            size = lists.type.list_size
            start, stop = lists.offset * size, (lists.offset + len(lists)) * size
        else:
            offsets = arrow.list_offsets(lists)
            start, stop = int(offsets[0]), int(offsets[-1])
        values = cast("arrow.Array", cast("Any", lists).values)
        return np.asarray(values.slice(start, stop - start).to_numpy(zero_copy_only=True))

    def _merged(self, payload: Payload, size: int) -> LabelArray:
        merged = empty(size, f"<u{self.dtype.itemsize}")
        for k in reversed(range(self.dtype.itemsize)):
            plane = decompressed(payload[f"plane_{k}"][0].as_buffer(), size, where=f"plane_{k}")
            if k == self.dtype.itemsize - 1:
                np.copyto(merged, plane)
            else:
                merged <<= 8
                merged |= plane
        return merged.view(self.dtype)

    def canonical(self, payload: Payload, *, rows: int, classes: int) -> CanonicalBytes:
        return [raw_bytes(self.decode(payload, rows=rows, classes=classes, dtype=self.dtype))]


class Float16Codec(_FloatCodec):
    """Labels in half precision."""

    name = "f16"
    specs = ("f16", "f16:plain")
    planned = True
    native_dtype = np.float16
    dtype = np.dtype("<f2")
    arrow_type = pa.float16()


class Float32Codec(_FloatCodec):
    """Labels in single precision, for teachers whose logits overflow float16."""

    name = "f32"
    specs = ("f32", "f32:plain")
    label_dtype = np.float32
    dtype = np.dtype("<f4")
    arrow_type = pa.float32()


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Like `numpy.empty`, but faster above 128 KB: Arrow's memory pool reuses pages, malloc maps new ones."""
    kind = np.dtype(dtype)
    sides = (shape,) if isinstance(shape, int) else shape
    buffer = pa.allocate_buffer(math.prod(sides) * kind.itemsize)
    return np.frombuffer(cast("Any", buffer), kind).reshape(sides)


def to_float32(values: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    """Return finite float16 values as float32, four times as fast as NumPy on CPUs without AVX-512."""
    source = np.ascontiguousarray(values).view(np.uint16).reshape(-1)
    target = empty(source.size, np.float32)
    # Temporary arrays of one block come from the heap; larger arrays would be mapped and zeroed each time.
    for start in range(0, source.size, _BLOCK):
        bits = source[start : start + _BLOCK].astype(np.uint32)
        sign = bits & 0x8000
        sign <<= 16
        bits &= 0x7FFF
        bits <<= 13
        # Read as float32, the exponent is 112 too small. Multiplying corrects it, also for subnormals.
        out = target[start : start + _BLOCK]
        np.multiply(bits.view(np.float32), _BIAS, out=out)
        pattern = out.view(np.uint32)
        pattern |= sign
    return target.reshape(values.shape)


def converted(values: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Convert finite values to a float dtype. Return the same array if it already has this dtype."""
    if values.dtype == dtype:
        return values
    if values.dtype == np.float16 and np.dtype(dtype) == np.float32:
        return to_float32(values)
    with np.errstate(over="ignore"):
        return values.astype(dtype, copy=False)
