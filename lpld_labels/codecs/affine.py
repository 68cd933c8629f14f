"""`int8`: each label row on its own 256-level grid, at half the bytes of float16.

value = offset + scale * code, computed in float32, with offset the row's smallest value and scale
its range / 255. The error is at most half a step (scale / 2) plus float32 rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs.base import CanonicalBytes, Codec, EncodedLabels, Granularity, Payload, raw_bytes
from lpld_labels.errors import PoolCorruptError
from lpld_labels.fields import FieldReader
from lpld_labels.halves import converted
from lpld_labels.records import LabelArray
from lpld_labels.schema import Column

LEVELS = 255


class Int8Codec(Codec):
    """Per-row affine 8-bit labels: columns scale, offset (float32) and codes (C bytes)."""

    name = "int8"
    lossless = False

    @property
    def granularity(self) -> Granularity:
        return "view"

    def parameters(self) -> dict[str, Any]:
        return {}

    def payload_columns(self, classes: int) -> tuple[Column, ...]:
        return (
            Column(name="scale", type=pa.float32(), component="labels"),
            Column(name="offset", type=pa.float32(), component="labels"),
            Column(name="codes", type=pa.binary(classes), component="labels"),
        )

    def encode(self, labels: LabelArray) -> EncodedLabels:
        values = converted(labels, np.float32)
        low = values.min(axis=1)
        # float64, because the range of float32 rows may itself overflow float32.
        scale = ((values.max(axis=1).astype(np.float64) - low) / LEVELS).astype(np.float32)
        # A constant row has range 0; any positive step stores it exactly.
        step = np.where(scale > 0, scale, np.float32(1)).astype(np.float32)
        steps = (values - low[:, None].astype(np.float64)) / step[:, None]
        codes = np.clip(np.rint(steps), 0, LEVELS).astype(np.uint8)
        payload = {
            "scale": pa.array(scale),
            "offset": pa.array(low),
            "codes": _fixed_binary(codes),
        }
        return EncodedLabels(payload=payload, canonical=_parts(scale, low, codes))

    def decode(
        self, payload: Payload, *, rows: int, classes: int, dtype: npt.DTypeLike = np.float32
    ) -> LabelArray:
        scale, offset, codes = _unpacked(payload, rows, classes)
        values = codes.astype(np.float32)
        values *= scale[:, None]
        values += offset[:, None]
        return converted(values, dtype)

    def canonical(self, payload: Payload, *, rows: int, classes: int) -> CanonicalBytes:
        return _parts(*_unpacked(payload, rows, classes))

    @classmethod
    def restore(cls, parameters: Mapping[str, Any], tables: Mapping[str, bytes]) -> Codec:
        FieldReader(parameters, where=f"codec {cls.name}").finish()
        return cls()


def _fixed_binary(codes: npt.NDArray[np.uint8]) -> pa.Array:
    rows, width = codes.shape
    buffer = pa.py_buffer(np.ascontiguousarray(codes))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, buffer])


def _unpacked(
    payload: Payload, rows: int, classes: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Return scale [B], offset [B] and codes [B, C] without copying."""
    codes = payload["codes"]
    if len(codes) != rows or codes.type.byte_width != classes:
        got = f"{len(codes)} x {codes.type.byte_width}"
        raise PoolCorruptError("label payload has the wrong shape", expected=f"{rows} x {classes}", got=got)
    flat = np.frombuffer(codes.buffers()[1], dtype=np.uint8)
    flat = flat[codes.offset * classes : (codes.offset + rows) * classes]
    scale = payload["scale"].to_numpy(zero_copy_only=True)
    offset = payload["offset"].to_numpy(zero_copy_only=True)
    return scale, offset, flat.reshape(rows, classes)


def _parts(
    scale: npt.NDArray[np.float32], offset: npt.NDArray[np.float32], codes: npt.NDArray[np.uint8]
) -> CanonicalBytes:
    return [raw_bytes(part) for part in (scale, offset, codes)]
