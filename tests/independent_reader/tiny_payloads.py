"""Payloads of the tiny pools of the tests: encoders of all codecs, in the simplest way the text allows."""

from __future__ import annotations

import io
import struct
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard
from pcodec import ChunkConfig, standalone

C = 7
L = 3
EDGES = [0, 1, 4]
K = 3
PEAKS = 2
STEP = 0.125
RANDOM = np.random.default_rng(20)
SCALE = np.array([1e-4, 2e-4, 3e-5], np.float32)
MEAN = RANDOM.normal(size=C).astype(np.float16)
BASIS = RANDOM.integers(-9000, 9000, (L, C)).astype(np.int16)


def frame(data: bytes) -> bytes:
    """Make one zstd frame with a content size."""
    return bytes(zstandard.ZstdCompressor(level=3, write_content_size=True).compress(data))


def sized(data: bytes) -> bytes:
    """Put a length before a frame."""
    return struct.pack("<I", len(data)) + data


def planes(values: np.ndarray) -> bytes:
    """Make byte planes of an array."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.dtype.itemsize)
    return b"".join(sized(frame(raw[:, k].tobytes())) for k in range(values.dtype.itemsize))


def pco(values: np.ndarray) -> bytes:
    """Make a pcodec blob."""
    return bytes(standalone.simple_compress(np.ascontiguousarray(values).reshape(-1), ChunkConfig()))


def npy(values: np.ndarray) -> bytes:
    """Make an npy table."""
    out = io.BytesIO()
    np.lib.format.write_array(out, values, version=(1, 0), allow_pickle=False)
    return out.getvalue()


def gaps_of(classes: np.ndarray) -> np.ndarray:
    """Make gaps of rising classes."""
    return np.diff(classes, axis=1, prepend=-1).astype(np.int64) - 1


class Payload:
    """Schema fields, parameters, tables and the encoder of one codec."""

    def __init__(self, name: str, layout: str | None = None, kind: str = "logits") -> None:
        """Choose a codec."""
        self.name, self.layout, self.kind = name, layout, kind
        self.per_view = layout == "plain" or name.startswith("int")
        self.parameters: dict[str, Any] = {}
        self.tables: dict[str, bytes] = {}
        self.identity = b""
        binary = pa.binary()
        columns: list[tuple[str, Any, bool]] = []
        if layout is not None:
            self.parameters = {"layout": layout}
            count, element = (2, pa.float16()) if name == "f16" else (4, pa.float32())
            if layout == "plain":
                columns = [("labels", pa.list_(pa.field("element", element, nullable=False)), False)]
            else:
                columns = [(f"plane_{k}", binary, False) for k in range(count)]
        elif name.startswith("int"):
            codes = pa.binary(-(-C * int(name[3:]) // 8))
            columns = [
                ("scale", pa.float32(), False),
                ("offset", pa.float32(), False),
                ("codes", codes, False),
            ]
        elif name == "topk":
            self.parameters = {"k": K, "value_bits": 8, "label_kind": kind}
            self.identity = struct.pack("<IB", K, 8)
            columns = [(n, binary, n in ("tail", "order")) for n in self._topk_names()]
        elif name == "klt":
            self.parameters = {
                "step": STEP, "edges": EDGES, "peaks": PEAKS, "label_kind": kind, "target": {"x": [1]},
            }  # fmt: skip
            self.tables = {"basis.pco": pco(BASIS), "scale.npy": npy(SCALE), "mean.npy": npy(MEAN)}
            tables = sha256(BASIS.tobytes() + SCALE.tobytes() + MEAN.tobytes()).digest()
            self.identity = struct.pack("<dI", STEP, PEAKS) + tables
            names = ("band_0", "band_1", "peak_gaps", "peak_values")
            columns = [(n, binary, False) for n in names]
        self.fields = [pa.field(n, t, nullable=null) for n, t, null in columns]

    @staticmethod
    def _topk_names() -> tuple[str, ...]:
        """Name the columns of topk with 8 bits."""
        return ("gaps", "values", "scale", "offset", "tail", "order")

    def encode(self, rows: int) -> tuple[dict[str, list[Any]], bytes, np.ndarray]:
        """Make a batch: columns, canonical bytes, and the labels a reader must give."""
        values = RANDOM.normal(size=(rows, C)).astype(np.float32)
        if self.layout is not None:
            return self._floats(values)
        if self.name.startswith("int"):
            return self._ints(rows, int(self.name[3:]))
        return self._topk(rows) if self.name == "topk" else self._klt(rows)

    def _floats(self, values: np.ndarray) -> tuple[dict[str, list[Any]], bytes, np.ndarray]:
        """Encode f16 or f32."""
        typed = values.astype(np.float16) if self.name == "f16" else values
        if self.layout == "plain":
            columns: dict[str, list[Any]] = {"labels": [list(row) for row in typed]}
        else:
            raw = typed.view(np.uint8).reshape(-1, typed.dtype.itemsize)
            columns = {f"plane_{k}": [frame(raw[:, k].tobytes())] for k in range(raw.shape[1])}
        return columns, typed.tobytes(), typed.astype(np.float32)

    def _ints(self, rows: int, bits: int) -> tuple[dict[str, list[Any]], bytes, np.ndarray]:
        """Encode n-bit codes, packing them as one big integer."""
        scale, offset = RANDOM.random(rows).astype(np.float32), RANDOM.normal(size=rows).astype(np.float32)
        codes = RANDOM.integers(0, 2**bits, (rows, C))
        size = -(-C * bits // 8)
        packed = [
            sum(int(c) << (bits * i) for i, c in enumerate(row)).to_bytes(size, "little") for row in codes
        ]
        labels = offset[:, None] + scale[:, None] * codes.astype(np.float32)
        canonical = scale.tobytes() + offset.tobytes() + codes.astype(np.uint8).tobytes()
        return {"scale": list(scale), "offset": list(offset), "codes": packed}, canonical, labels

    def _topk(self, rows: int) -> tuple[dict[str, list[Any]], bytes, np.ndarray]:
        """Encode topk with 8 bits; a batch of one row has neither tail nor order."""
        classes = np.stack([np.sort(RANDOM.permutation(C)[:K]) for _ in range(rows)])
        codes = RANDOM.integers(0, 256, (rows, K)).astype(np.uint8)
        scale, offset = np.full(rows, 0.03125, np.float16), np.full(rows, 0.5, np.float16)
        tail = RANDOM.normal(size=rows).astype(np.float32) if rows > 1 else None
        labels = np.full((rows, C), -10000, np.float32)
        if tail is not None:
            labels[:] = tail[:, None]
        decoded = (offset.astype(np.float32)[:, None] + np.float32(0.03125) * codes).astype(np.float32)
        np.put_along_axis(labels, classes, decoded, axis=1)
        ranks = np.stack([RANDOM.permutation(K) for _ in range(rows)])
        shifts = ((ranks - np.arange(K)) % 65536).astype(np.uint16)
        parts = [scale.tobytes(), offset.tobytes(), codes.tobytes(), b"" if tail is None else tail.tobytes()]
        columns: dict[str, list[Any]] = {
            "gaps": [planes(gaps_of(classes).astype(np.uint16))], "values": [planes(codes)],
            "scale": [planes(scale)], "offset": [planes(offset)],
            "tail": [None if tail is None else planes(tail)], "order": [planes(shifts) if rows > 1 else None],
        }  # fmt: skip
        return columns, b"".join([classes.astype(np.int32).tobytes(), *parts]), labels

    def _klt(self, rows: int) -> tuple[dict[str, list[Any]], bytes, np.ndarray]:
        """Encode klt with two bands and two peaks."""
        integers = RANDOM.integers(-40, 40, (rows, L + 1)).astype(np.int16)
        classes = np.stack([np.sort(RANDOM.permutation(C)[:PEAKS]) for _ in range(rows)])
        peaks = RANDOM.integers(-40, 40, (rows, PEAKS)).astype(np.int16)
        basis = np.vstack([np.full(C, C**-0.5), SCALE.astype(np.float64)[:, None] * BASIS])
        labels = MEAN + STEP * integers @ basis
        for row in range(rows):
            labels[row, classes[row]] += STEP / 8 * peaks[row]
        if self.kind == "probabilities":
            labels = np.exp(labels) / np.exp(labels).sum(axis=1, keepdims=True)
        columns: dict[str, list[Any]] = {
            "band_0": [pco(integers[:, :1])], "band_1": [pco(integers[:, 1:])],
            "peak_gaps": [planes(gaps_of(classes).astype(np.uint16))], "peak_values": [pco(peaks)],
        }  # fmt: skip
        canonical = integers.tobytes() + classes.astype(np.int32).tobytes() + peaks.tobytes()
        return columns, canonical, labels
