"""`int8`, `int6`, `int4`: each label row on its own grid of 256, 64 or 16 levels.

value = offset + scale * code, computed in float32, with offset the row's smallest value and scale its
range / (levels - 1). The error is at most half a step (scale / 2) plus float32 rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs.base import Codec, EncodedLabels, Granularity, Payload, raw_bytes
from lpld_labels.codecs.float16 import converted
from lpld_labels.codecs.rowgrid import RowGrid
from lpld_labels.errors import PoolCorruptError
from lpld_labels.format import arrow
from lpld_labels.format.digests import CanonicalBytes
from lpld_labels.format.json_fields import FieldReader
from lpld_labels.format.records import LabelArray
from lpld_labels.format.schema import Column


class AffineCodec(Codec):
    """Per-row affine labels: columns scale, offset (float32) and codes (ceil(C * bits / 8) bytes)."""

    bits: ClassVar[int]
    lossless = False
    planned = True

    @property
    def granularity(self) -> Granularity:
        return "view"

    def parameters(self) -> dict[str, Any]:
        return {}

    def payload_columns(self, classes: int) -> tuple[Column, ...]:
        width = packed_width(classes, self.bits)
        return (
            Column(name="scale", type=pa.float32(), component="labels"),
            Column(name="offset", type=pa.float32(), component="labels"),
            Column(name="codes", type=pa.binary(width), component="labels"),
        )

    def encode(self, labels: LabelArray) -> EncodedLabels:
        grid = RowGrid.fit(labels, bits=self.bits, dtype=np.float32)
        payload = {
            "scale": pa.array(grid.scale),
            "offset": pa.array(grid.offset),
            "codes": _fixed_binary(pack_bits(grid.codes, self.bits)),
        }
        return EncodedLabels(payload=payload, canonical=_canonical(grid))

    def decode(
        self, payload: Payload, *, rows: int, classes: int, dtype: npt.DTypeLike = np.float32
    ) -> LabelArray:
        grid = self.grid(payload, rows, classes)
        if np.dtype(dtype) == np.float16 and classes > 1 << self.bits:
            return grid.halves(bits=self.bits)
        return converted(grid.values(), dtype)

    def canonical(self, payload: Payload, *, rows: int, classes: int) -> CanonicalBytes:
        return _canonical(self.grid(payload, rows, classes))

    def grid(self, payload: Payload, rows: int, classes: int) -> RowGrid:
        """Return codes [rows, classes] and the grid of each row, to finish decoding elsewhere."""
        codes = payload["codes"]
        width = packed_width(classes, self.bits)
        if len(codes) != rows or codes.type.byte_width != width:
            raise PoolCorruptError(
                "label payload has the wrong shape",
                expected=f"{rows} x {width} bytes",
                got=f"{len(codes)} x {codes.type.byte_width} bytes",
            )
        flat = arrow.values_of(codes.buffers()[1], np.uint8)
        packed = flat[codes.offset * width : (codes.offset + rows) * width].reshape(rows, width)
        spare = 8 * width - self.bits * classes
        if spare and (packed[:, -1] >> np.uint8(8 - spare)).any():
            raise PoolCorruptError("left-over bits of column 'codes' are not 0", where="codes")
        grid = RowGrid(
            codes=unpack_bits(packed, self.bits, classes),
            scale=payload["scale"].to_numpy(zero_copy_only=True),
            offset=payload["offset"].to_numpy(zero_copy_only=True),
        )
        grid.check(bits=self.bits, label_kind=self.label_kind)
        return grid

    @classmethod
    def restore(cls, parameters: Mapping[str, Any], tables: Mapping[str, bytes]) -> Codec:
        FieldReader(parameters, where=f"codec {cls.name}").finish(all_known=True)
        return cls()


class Int8Codec(AffineCodec):
    """256 levels: half the bytes of float16, next to nothing lost."""

    name = "int8"
    bits = 8


class Int6Codec(AffineCodec):
    """64 levels."""

    name = "int6"
    bits = 6


class Int4Codec(AffineCodec):
    """16 levels: a quarter of the bytes of float16."""

    name = "int4"
    bits = 4


def packed_width(count: int, bits: int) -> int:
    """Return the bytes that `count` codes of `bits` bits fill."""
    return (count * bits + 7) // 8


def pack_bits(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Pack each row: bit i of code j is bit n = j * bits + i of the row, bit n % 8 of byte n // 8."""
    if bits == 8:
        return codes
    rows, count = codes.shape
    cycle = _cycle(bits)
    cycles = -(-count // cycle)
    padded = np.zeros((rows, cycles, cycle), np.uint8)
    padded.reshape(rows, -1)[:, :count] = codes
    packed = np.zeros((rows, cycles, cycle * bits // 8), np.uint8)
    for j in range(cycle):
        byte, shift = divmod(j * bits, 8)
        packed[:, :, byte] |= padded[:, :, j] << np.uint8(shift)
        if shift + bits > 8:
            packed[:, :, byte + 1] |= padded[:, :, j] >> np.uint8(8 - shift)
    return packed.reshape(rows, -1)[:, : packed_width(count, bits)]


def unpack_bits(packed: npt.NDArray[np.uint8], bits: int, count: int) -> npt.NDArray[np.uint8]:
    """Undo `pack_bits`; returns uint8 [rows, count]."""
    if bits == 8:
        return packed
    rows = len(packed)
    cycle = _cycle(bits)
    cycles = -(-count // cycle)
    padded = np.zeros((rows, cycles, cycle * bits // 8), np.uint8)
    padded.reshape(rows, -1)[:, : packed.shape[1]] = packed
    codes = np.empty((rows, cycles, cycle), np.uint8)
    for j in range(cycle):
        byte, shift = divmod(j * bits, 8)
        code = padded[:, :, byte] >> np.uint8(shift)
        if shift + bits > 8:
            code |= padded[:, :, byte + 1] << np.uint8(8 - shift)
        codes[:, :, j] = code & np.uint8((1 << bits) - 1)
    return codes.reshape(rows, -1)[:, :count]


def _cycle(bits: int) -> int:
    """Return after how many codes the packing starts at a byte's first bit again."""
    return 8 // math.gcd(bits, 8)


def _fixed_binary(codes: npt.NDArray[np.uint8]) -> arrow.Array:
    rows, width = codes.shape
    buffer = arrow.buffer_of(np.ascontiguousarray(codes))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, buffer])


def _canonical(grid: RowGrid) -> CanonicalBytes:
    return [raw_bytes(part) for part in (grid.scale, grid.offset, grid.codes)]
