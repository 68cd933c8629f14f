"""Codecs: payload rows of a batch become labels, float32 [rows, C], and canonical bytes."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray
from pcodec import standalone

from .files import Refused, need
from .manifest import NAME, Manifest, anything, fields, integer, list_of, number, string
from .parquet import Row

Array = NDArray[Any]
Decoded = tuple[Array, bytes]
Load = Callable[[str], bytes]
"""Returns a codec table, proven."""
_PARAMETERS = f"{NAME} codec parameters"


@dataclass(frozen=True)
class Codec:
    """How labels are stored. `decode` takes rows of the file and the number of views."""

    columns: str
    decode: Callable[[Sequence[Row], int], Decoded]
    per_view: bool = False
    identity: bytes = b""


def choose_codec(manifest: Manifest, load: Load) -> Codec:
    """Return the manifest's codec."""
    name, parameters = manifest.fields["codec"]["name"], manifest.fields["codec"]["parameters"]
    tables = {entry.path for entry in manifest.of_role("codec")}
    wanted = {"codec/basis.pco", "codec/scale.npy", "codec/mean.npy"} if name == "klt" else set()
    need(tables == wanted, f"{NAME} files", f"codec tables are not {sorted(wanted)}")
    if name in ("f16", "f32"):
        return _floats(parameters, manifest.classes, 2 if name == "f16" else 4)
    if name in ("int8", "int6", "int4"):
        return _affine(parameters, manifest.classes, int(name[3:]))
    if name == "topk":
        return _topk(parameters, manifest.classes, manifest.label_kind)
    need(name == "klt", f"{NAME} codec", f"{name!a} is not known")
    return _klt(parameters, manifest.classes, manifest.label_kind, load)


def _little(values: Array) -> bytes:
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()


def _finite(values: Array, where: str) -> Array:
    need(np.isfinite(values).all(), where, "NaN or infinite")
    return values


# Blobs


def _unzstd(blob: bytes, size: int, where: str) -> bytes:
    """Decompress one zstd frame of `size` bytes, with nothing before or after it."""
    need(blob[:4] == b"\x28\xb5\x2f\xfd", where, "no zstd frame")
    try:
        frame = zstandard.get_frame_parameters(blob)
        need(frame.content_size == size and frame.dict_id == 0, where, f"not a zstd frame of {size} bytes")
        return zstandard.ZstdDecompressor(max_window_size=2**31).decompress(blob, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Refused(f"{where}: {error}") from error


def _joined(planes: Sequence[bytes], dtype: str, shape: tuple[int, ...]) -> Array:
    """Put byte k of item i together from planes."""
    items = np.stack([np.frombuffer(plane, np.uint8) for plane in planes], axis=1)
    return np.ascontiguousarray(items).view(dtype).reshape(shape)


def _byte_planes(blob: bytes, dtype: str, shape: tuple[int, ...], where: str) -> Array:
    planes, position = [], 0
    for _ in range(np.dtype(dtype).itemsize):
        start = position + 4
        position = start + int.from_bytes(blob[position:start], "little")
        need(position <= len(blob), where, "byte planes are cut off")
        planes.append(_unzstd(blob[start:position], math.prod(shape), where))
    need(position == len(blob), where, "bytes after the last byte plane")
    return _joined(planes, dtype, shape)


def _pcodec(blob: bytes, shape: tuple[int, ...], where: str) -> Array:
    """Decode a pcodec blob of int16; its output is bounded by the shape."""
    need(blob[:4] == b"pco!" and blob[4:5] <= b"\3", where, "no pcodec blob of a known version")
    out = np.zeros(math.prod(shape), np.int16)
    try:
        progress = standalone.simple_decompress_into(blob, out)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise Refused(f"{where}: {error}") from error
    need(progress.finished and progress.n_processed == out.size, where, f"not {out.size} values")
    return out.reshape(shape)


def _npy(data: bytes, dtype: str, count: int, where: str) -> Array:
    """Decode an npy table of one dimension, whose header NumPy writes in one way only."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({count},), }}"
    start = 10 + int.from_bytes(data[8:10], "little")
    need(data[:8] == b"\x93NUMPY\x01\0", where, "not npy version 1.0")
    need(data[10:start].decode("latin-1").rstrip(" \n") == header, where, f"header is not {header}")
    need(len(data) == start + count * np.dtype(dtype).itemsize, where, f"not {count} values")
    return _finite(np.frombuffer(data, dtype, count, start), where)


# The codecs


def _floats(parameters: Any, classes: int, size: int) -> Codec:
    check = fields({"layout": string("compact", "plain")}, ignorable=False)
    layout, dtype = check(parameters, _PARAMETERS)["layout"], f"<f{size}"

    def decode(rows: Sequence[Row], count: int) -> Decoded:
        if layout == "compact":
            planes = [_unzstd(rows[0][f"plane_{k}"], count * classes, f"plane_{k}") for k in range(size)]
            values = _joined(planes, dtype, (count, classes))
        else:
            need(all(len(row["labels"]) == classes for row in rows), "labels", "a row is not C values")
            values = np.array([row["labels"] for row in rows], dtype)
        return values.astype(np.float32), _little(values)

    if layout == "compact":
        return Codec(" ".join(f"required binary plane_{k};" for k in range(size)), decode)
    element = "float element" if size == 4 else "fixed_len_byte_array(2) element (FLOAT16)"
    return Codec(
        f"required group labels (LIST) {{ repeated group list {{ required {element}; }} }}", decode, True
    )


def _affine(parameters: Any, classes: int, bits: int) -> Codec:
    fields({}, ignorable=False)(parameters, _PARAMETERS)
    length = -(-classes * bits // 8)

    def decode(rows: Sequence[Row], count: int) -> Decoded:
        scale, offset = (_finite(np.array([row[n] for row in rows], "<f4"), n) for n in ("scale", "offset"))
        need((scale >= 0).all(), "scale", "below 0")
        packed = np.frombuffer(b"".join(row["codes"] for row in rows), np.uint8).reshape(count, length)
        loose = np.unpackbits(packed, axis=1, bitorder="little")
        need(not loose[:, classes * bits :].any(), "codes", "left-over bits are not 0")
        used = loose[:, : classes * bits].reshape(count, classes, bits)
        codes = np.packbits(used, axis=2, bitorder="little")[:, :, 0]
        with np.errstate(over="ignore"):
            labels = codes.astype(np.float32) * scale[:, None] + offset[:, None]
        return labels, _little(scale) + _little(offset) + codes.tobytes()

    codes = f"required fixed_len_byte_array({length}) codes;"
    return Codec(f"required float scale; required float offset; {codes}", decode, True)


def _gaps(blob: bytes, shape: tuple[int, int], classes: int, where: str) -> Array:
    """Decode gaps into rising classes."""
    gaps = _byte_planes(blob, "<u4" if classes > 65536 else "<u2", shape, where)
    found = np.cumsum(gaps, axis=1, dtype=np.int64) + np.arange(shape[1])
    need((found[:, -1] < classes).all(), where, "classes run past the last class")
    return found


def _check_order(blob: bytes, shape: tuple[int, int]) -> None:
    dtype, modulus = ("<u4", 2**32) if shape[1] > 65536 else ("<u2", 2**16)
    shifts = _byte_planes(blob, dtype, shape, "order").astype(np.int64)
    ranks = np.sort((shifts + np.arange(shape[1])) % modulus, axis=1)
    need((ranks == np.arange(shape[1])).all(), "order", "not a permutation")


def _topk(parameters: Any, classes: int, label_kind: str) -> Codec:
    checks = {"k": integer(1, classes), "value_bits": integer(8, 32), "label_kind": string(label_kind)}
    parameters = fields(checks, ignorable=False)(parameters, _PARAMETERS)
    k, bits = parameters["k"], parameters["value_bits"]
    need(bits in (8, 16, 32), f"{_PARAMETERS} value_bits", "not 8, 16 or 32")

    def values_of(row: Row, shape: tuple[int, int]) -> Decoded:
        if bits != 8:
            values = _finite(_byte_planes(row["values"], f"<f{bits // 8}", shape, "values"), "values")
            return values.astype(np.float32), _little(values)
        codes = _byte_planes(row["values"], "u1", shape, "values")
        names = ("scale", "offset")
        scale, offset = (_finite(_byte_planes(row[n], "<f2", shape[:1], n), n) for n in names)
        need((scale >= 0).all(), "scale", "below 0")
        values = codes.astype(np.float32) * scale.astype(np.float32)[:, None]
        values += offset.astype(np.float32)[:, None]
        return values, _little(scale) + _little(offset) + codes.tobytes()

    def decode(rows: Sequence[Row], count: int) -> Decoded:
        row, shape = rows[0], (count, k)
        kept = _gaps(row["gaps"], shape, classes, "gaps")
        values, stored = values_of(row, shape)
        canonical = _little(kept.astype(np.int32)) + stored
        labels = np.full((count, classes), -10000 if label_kind == "logits" else 0, np.float32)
        if row["tail"] is not None:
            tail = _finite(_byte_planes(row["tail"], "<f4", (count,), "tail"), "tail")
            labels[:] = tail[:, None]
            canonical += _little(tail)
        if row["order"] is not None:
            _check_order(row["order"], shape)
        np.put_along_axis(labels, kept, values, axis=1)
        return labels, canonical

    names = ("gaps", "values", *(("scale", "offset") if bits == 8 else ()))
    columns = " ".join(f"required binary {name};" for name in names)
    columns += " optional binary tail; optional binary order;"
    return Codec(columns, decode, identity=struct.pack("<IB", k, bits))


def _klt(parameters: Any, classes: int, label_kind: str, load: Load) -> Codec:
    checks = {
        "step": number,
        "edges": list_of(integer(0, classes + 1), least=2),
        "peaks": integer(0, classes),
        "label_kind": string(label_kind),
        "target": anything,
    }
    parameters = fields(checks, ignorable=False)(parameters, _PARAMETERS)
    step, edges, peaks = parameters["step"], parameters["edges"], parameters["peaks"]
    with np.errstate(over="ignore"):
        step32 = np.float32(step)
    need(step32 > 0 and np.isfinite(step32), f"{_PARAMETERS} step", "not above 0 and finite")
    rising = edges[0] == 0 and all(a < b for a, b in pairwise(edges))
    need(rising, f"{_PARAMETERS} edges", "not rising from 0")
    length = edges[-1] - 1
    need(length * classes <= 2**26, f"{_PARAMETERS} edges", "the basis is too large")
    scale = _npy(load("codec/scale.npy"), "<f4", length, "codec/scale.npy")
    mean = _npy(load("codec/mean.npy"), "<f2", classes, "codec/mean.npy")
    basis = _pcodec(load("codec/basis.pco"), (length, classes), "codec/basis.pco")
    vectors = np.full((length + 1, classes), 1 / math.sqrt(classes), np.float32)
    vectors[1:] = basis * scale[:, None]

    def decode(rows: Sequence[Row], count: int) -> Decoded:
        row = rows[0]
        bands = [
            _pcodec(row[f"band_{k}"], (count, high - low), f"band_{k}")
            for k, (low, high) in enumerate(pairwise(edges))
        ]
        integers = np.concatenate(bands, axis=1)
        canonical = _little(integers)
        with np.errstate(over="ignore", invalid="ignore"):
            labels = mean.astype(np.float32) + (integers.astype(np.float32) * step32) @ vectors
            if peaks:
                places = _gaps(row["peak_gaps"], (count, peaks), classes, "peak_gaps")
                heights = _pcodec(row["peak_values"], (count, peaks), "peak_values")
                canonical += _little(places.astype(np.int32)) + _little(heights)
                labels[np.arange(count)[:, None], places] += heights.astype(np.float32) * np.float32(step / 8)
        _finite(labels, "labels")
        if label_kind == "probabilities":
            labels = np.exp(labels - labels.max(axis=1, keepdims=True))
            labels /= labels.sum(axis=1, keepdims=True)
        return labels, canonical

    names = [f"band_{k}" for k in range(len(edges) - 1)] + (["peak_gaps", "peak_values"] if peaks else [])
    tables = hashlib.sha256(_little(basis) + _little(scale) + _little(mean)).digest()
    columns = " ".join(f"required binary {name};" for name in names)
    return Codec(columns, decode, identity=struct.pack("<dI", step, peaks) + tables)
