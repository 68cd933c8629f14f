"""Uniform quantisation grids per label row, and the codecs `int8`, `int6`, `int4` with 256, 64 or 16 levels.

value = offset + scale * code, computed in float32. offset is the row's smallest value; scale is the row's
range / (levels - 1). The error is at most half a step (scale / 2) plus float32 rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs.base import Codec, EncodedLabels, Parts, Payload, raw_bytes, row_pieces
from lpld_labels.codecs.floats import converted, empty
from lpld_labels.errors import InvalidBatchError, PoolCorruptError
from lpld_labels.format import arrow
from lpld_labels.format.digests import CanonicalBytes
from lpld_labels.format.records import LabelArray
from lpld_labels.format.schema import Column

if TYPE_CHECKING:
    import torch

_WIDEST = 0.99 * float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowGrid:
    """Quantised rows. codes: uint8 [B, n]. scale, offset: float16/float32 [B]. Constant rows have scale 0."""

    codes: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.floating[Any]]
    offset: npt.NDArray[np.floating[Any]]

    @staticmethod
    def fit(values: LabelArray, *, bits: int, dtype: npt.DTypeLike) -> RowGrid:
        """Quantise each row of `values`, float16/float32 [B, n], to 2^bits levels over the row's range.

        Scale and offset are rounded outwards to `dtype`, so the grid spans the row and every value is within
        half a step of its level (plus float32 rounding).
        """
        levels = (1 << bits) - 1
        rows = converted(values, np.float32)
        offset = _rounded(rows.min(axis=1).astype(np.float64), dtype, down=True)
        spread = rows.max(axis=1).astype(np.float64) - offset
        scale = _rounded(spread / levels, dtype, down=False)
        if spread.max(initial=0.0) > _WIDEST:
            # Decoders compute scale * code in float32, which must not overflow.
            raise InvalidBatchError(
                "range of a label row is too large to quantise",
                expected=f"at most {_WIDEST:.3g}",
                got=float(spread.max()),
                hint="use codec 'f32'",
            )
        # A constant row has range 0; any positive step stores it exactly.
        step = np.where(scale > 0, scale, 1)
        codes = rows - offset.astype(np.float32)[:, None]
        codes /= step.astype(np.float32)[:, None]
        np.rint(codes, out=codes)
        return RowGrid(codes=np.clip(codes, 0, levels).astype(np.uint8), scale=scale, offset=offset)

    def check(self, *, bits: int, label_kind: str) -> None:
        """Refuse non-finite values and negative probabilities. If all levels are valid, decode no codes."""
        scale, offset = self.scale.astype(np.float32), self.offset.astype(np.float32)
        if not (np.isfinite(scale).all() and np.isfinite(offset).all() and (scale >= 0).all()):
            raise PoolCorruptError(
                "columns 'scale' and 'offset' are out of range", expected="finite values, scale >= 0"
            )
        with np.errstate(over="ignore"):
            finite = np.isfinite(offset + scale * np.float32((1 << bits) - 1))
            if not finite.all() and not np.isfinite(self.values()[~finite]).all():
                raise PoolCorruptError("a label is not finite", expected="finite values")
        if label_kind == "probabilities" and (offset < 0).any():
            lowest = float(self.values().min())
            if lowest < 0:
                raise PoolCorruptError("a probability is negative", expected="at least 0", got=lowest)

    def values(self) -> npt.NDArray[np.float32]:
        values = empty(self.codes.shape, np.float32)
        np.copyto(values, self.codes)
        values *= self.scale.astype(np.float32)[:, None]
        values += self.offset.astype(np.float32)[:, None]
        return values

    def canonical(self) -> CanonicalBytes:
        return [raw_bytes(part) for part in (self.scale, self.offset, self.codes)]


def _rounded(
    exact: npt.NDArray[np.float64], dtype: npt.DTypeLike, *, down: bool
) -> npt.NDArray[np.floating[Any]]:
    """Return the nearest values in `dtype` that are <= `exact` if `down` is set, else >= `exact`."""
    with np.errstate(over="ignore"):
        near: npt.NDArray[np.floating[Any]] = exact.astype(dtype)
    limit = near.dtype.type(-np.inf if down else np.inf)
    beyond = near > exact if down else near < exact
    rounded = np.where(beyond, np.nextafter(near, limit), near)
    if not np.isfinite(rounded).all():
        raise InvalidBatchError(
            "label is too large to quantise",
            expected=f"at most {np.finfo(near.dtype).max}",
            got=float(np.abs(exact).max()),
            hint="use codec 'f32'",
        )
    return rounded


class AffineCodec(Codec):
    """Labels quantised per row. Columns: scale and offset (float32), codes (ceil(C * bits / 8) bytes)."""

    bits: ClassVar[int]
    planned = True
    granularity = "view"

    def payload_columns(self, classes: int) -> tuple[Column, ...]:
        codes = pa.binary(packed_width(classes, self.bits))
        kinds: dict[str, pa.DataType] = {"scale": pa.float32(), "offset": pa.float32(), "codes": codes}
        return tuple(Column(name=name, type=kind, component="labels") for name, kind in kinds.items())

    def encode(self, labels: LabelArray) -> EncodedLabels:
        grid = RowGrid.fit(labels, bits=self.bits, dtype=np.float32)
        packed = pack_bits(grid.codes, self.bits)
        buffers = [None, pa.py_buffer(raw_bytes(packed))]
        codes = pa.FixedSizeBinaryArray.from_buffers(pa.binary(packed.shape[1]), len(packed), buffers)
        payload = {"scale": pa.array(grid.scale), "offset": pa.array(grid.offset), "codes": codes}
        return EncodedLabels(payload=payload, canonical=grid.canonical())

    def decode(
        self, payload: Payload, *, rows: int, classes: int, dtype: npt.DTypeLike = np.float32
    ) -> LabelArray:
        return converted(self.grid(payload, rows, classes).values(), dtype)

    def split(self, payload: Payload, *, rows: int, classes: int) -> Parts:
        grid = self.grid(payload, rows, classes)
        return grid.codes, grid.scale, grid.offset

    def join(self, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        import torch

        codes, scale, offset = parts
        values = torch.empty_like(codes, dtype=torch.float32)
        for target, code, step, start in row_pieces(values, codes, scale[:, None], offset[:, None]):
            # The same two roundings as in RowGrid.values, so that results are bit-identical.
            target.copy_(code).mul_(step).add_(start)
        return values

    def canonical(self, payload: Payload, *, rows: int, classes: int) -> CanonicalBytes:
        return self.grid(payload, rows, classes).canonical()

    def grid(self, payload: Payload, rows: int, classes: int) -> RowGrid:
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
            raise PoolCorruptError("unused bits of column 'codes' are not 0", where="codes")
        grid = RowGrid(
            codes=unpack_bits(packed, self.bits, classes),
            scale=payload["scale"].to_numpy(zero_copy_only=True),
            offset=payload["offset"].to_numpy(zero_copy_only=True),
        )
        grid.check(bits=self.bits, label_kind=self.label_kind)
        return grid


class Int8Codec(AffineCodec):
    """256 levels: half the bytes of float16, nearly lossless."""

    name = "int8"
    bits = 8


class Int6Codec(AffineCodec):
    """64 levels: three eighths of the bytes of float16."""

    name = "int6"
    bits = 6


class Int4Codec(AffineCodec):
    """16 levels: a quarter of the bytes of float16."""

    name = "int4"
    bits = 4


def packed_width(count: int, bits: int) -> int:
    """Return the size in bytes of `count` codes with `bits` bits each."""
    return (count * bits + 7) // 8


def pack_bits(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Pack each row: bit i of code j becomes bit n % 8 of byte n // 8, where n = j * bits + i."""
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
    """Return the number of codes after which the packing is byte-aligned again."""
    return 8 // math.gcd(bits, 8)
