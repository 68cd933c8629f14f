"""Codecs: payload rows of a batch become labels, float32 [rows, C], and canonical bytes."""

import hashlib
import io
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

from .manifest import NAME, Manifest, Refused, Row, check, need

Array = NDArray[Any]
Shape = tuple[int, ...]
Decoded = tuple[Array, bytes]
_PARAMETERS = f"{NAME} codec parameters"
_TABLES = {"codec/basis.pco", "codec/scale.npy", "codec/mean.npy"}


@dataclass(frozen=True)
class Codec:
    """How labels are stored. `decode` takes the payload rows and the number of views of a batch."""

    columns: str
    decode: Callable[[Sequence[Row], int], Decoded]
    per_view: bool = False
    identity: bytes = b""


def choose_codec(manifest: Manifest, load: Callable[[str], bytes]) -> Codec:
    """Return the manifest's codec. `load` returns a codec table, proven."""
    name, parameters = manifest.fields["codec"]["name"], manifest.fields["codec"]["parameters"]
    tables = {entry["path"] for entry in manifest.of_role("codec")}
    need(tables == (_TABLES if name == "klt" else set()), f"{NAME} files", "not the tables of the codec")
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


def _binary(names: Sequence[str]) -> str:
    return " ".join(f"required binary {name};" for name in names)


def _unzstd(blob: bytes, size: int, where: str) -> bytes:
    """Decompress one zstd frame of `size` bytes, with nothing before or after it."""
    try:
        frame = zstandard.get_frame_parameters(blob)
        alone = blob[:4] == zstandard.FRAME_HEADER and frame.content_size == size and frame.dict_id == 0
        need(alone, where, f"not a zstd frame of {size} bytes")
        return zstandard.ZstdDecompressor(max_window_size=2**31).decompress(blob, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Refused(f"{where}: {error}") from error


def _joined(planes: Sequence[bytes], dtype: str, shape: Shape) -> Array:
    items = np.stack([np.frombuffer(plane, np.uint8) for plane in planes], axis=1)
    return np.ascontiguousarray(items).view(dtype).reshape(shape)


def _byte_planes(blob: bytes, dtype: str, shape: Shape, where: str) -> Array:
    planes, position = [], 0
    for _ in range(np.dtype(dtype).itemsize):
        start = position + 4
        position = start + int.from_bytes(blob[position:start], "little")
        planes.append(_unzstd(blob[start:position], math.prod(shape), where))
    need(position == len(blob), where, "bytes after the last byte plane")
    return _joined(planes, dtype, shape)


def _pcodec(blob: bytes, shape: Shape, where: str) -> Array:
    """Decode a pcodec blob of int16; its output is bounded by the shape."""
    need(blob[:4] == b"pco!" and blob[4:5] <= b"\3", where, "no pcodec blob of a known version")
    out = np.zeros(math.prod(shape), np.int16)
    try:
        progress = standalone.simple_decompress_into(blob, out)
    except (RuntimeError, TypeError, ValueError) as error:
        raise Refused(f"{where}: {error}") from error
    need(progress.finished and progress.n_processed == out.size, where, f"not {out.size} values")
    return out.reshape(shape)


def _npy(data: bytes, dtype: str, count: int, where: str) -> Array:
    """Decode an npy table of one dimension; NumPy writes its header in one way only."""
    example = io.BytesIO()
    np.save(example, np.zeros(count, dtype))
    start = len(example.getvalue()) - count * np.dtype(dtype).itemsize
    same = len(data) == len(example.getvalue()) and data[:start] == example.getvalue()[:start]
    need(same, where, f"not an npy table of {count} values")
    return _finite(np.frombuffer(data, dtype, count, start), where)


def _floats(parameters: Any, classes: int, size: int) -> Codec:
    check(parameters, {"layout": "compact|plain"}, _PARAMETERS, ignorable=False)
    compact, dtype = parameters["layout"] == "compact", f"<f{size}"
    planes = [f"plane_{k}" for k in range(size)]

    def decode(rows: Sequence[Row], count: int) -> Decoded:
        if compact:
            parts = [_unzstd(rows[0][name], count * classes, name) for name in planes]
            values = _joined(parts, dtype, (count, classes))
        else:
            need(all(len(row["labels"]) == classes for row in rows), "labels", "a row is not C values")
            values = np.array([row["labels"] for row in rows], dtype)
        return values.astype(np.float32), _little(values)

    element = "float element" if size == 4 else "fixed_len_byte_array(2) element (FLOAT16)"
    plain = f"required group labels (LIST) {{ repeated group list {{ required {element}; }} }}"
    return Codec(_binary(planes) if compact else plain, decode, per_view=not compact)


def _affine(parameters: Any, classes: int, bits: int) -> Codec:
    check(parameters, {}, _PARAMETERS, ignorable=False)
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
    return Codec(f"required float scale; required float offset; {codes}", decode, per_view=True)


def _gaps(blob: bytes, shape: tuple[int, int], classes: int, where: str) -> Array:
    gaps = _byte_planes(blob, "<u4" if classes > 65536 else "<u2", shape, where)
    found = np.cumsum(gaps, axis=1, dtype=np.int64) + np.arange(shape[1])
    need((found[:, -1] < classes).all(), where, "classes run past the last class")
    return found


def _topk(parameters: Any, classes: int, label_kind: str) -> Codec:
    kinds = {"k": range(1, classes + 1), "value_bits": range(8, 33, 8), "label_kind": label_kind}
    check(parameters, kinds, _PARAMETERS, ignorable=False)
    k, bits = parameters["k"], parameters["value_bits"]
    need(bits != 24, f"{_PARAMETERS} value_bits", "not 8, 16 or 32")

    def decode(rows: Sequence[Row], count: int) -> Decoded:
        def planes(name: str, dtype: str, *shape: int) -> Array:
            return _finite(_byte_planes(rows[0][name], dtype, (count, *shape), name), name)

        row = rows[0]
        kept = _gaps(row["gaps"], (count, k), classes, "gaps")
        values = stored = planes("values", "u1" if bits == 8 else f"<f{bits // 8}", k)
        canonical = _little(kept.astype(np.int32))
        if bits == 8:
            scale, offset = planes("scale", "<f2"), planes("offset", "<f2")
            need((scale >= 0).all(), "scale", "below 0")
            canonical += _little(scale) + _little(offset)
            values = stored.astype(np.float32) * scale.astype(np.float32)[:, None]
            values += offset.astype(np.float32)[:, None]
        canonical += _little(stored)
        labels = np.full((count, classes), -10000 if label_kind == "logits" else 0, np.float32)
        if row["tail"] is not None:
            tail = planes("tail", "<f4")
            labels[:] = tail[:, None]
            canonical += _little(tail)
        if row["order"] is not None:
            shifts = planes("order", "<u4" if k > 65536 else "<u2", k)
            ranks = shifts + np.arange(k, dtype=shifts.dtype)  # modulo 2^16 or 2^32
            need((np.sort(ranks, axis=1) == np.arange(k)).all(), "order", "not a permutation")
        np.put_along_axis(labels, kept, values, axis=1)
        return labels, canonical

    columns = _binary(["gaps", "values", *(["scale", "offset"] if bits == 8 else [])])
    columns += " optional binary tail; optional binary order;"
    return Codec(columns, decode, identity=struct.pack("<IB", k, bits))


def _klt(parameters: Any, classes: int, label_kind: str, load: Callable[[str], bytes]) -> Codec:
    kinds: Row = {"step": float, "edges": [range(classes + 2)], "peaks": range(classes + 1), "target": dict}
    check(parameters, kinds | {"label_kind": label_kind}, _PARAMETERS, ignorable=False)
    step, edges, peaks = parameters["step"], parameters["edges"], parameters["peaks"]
    with np.errstate(over="ignore"):
        step32, eighth = np.float32(step), np.float32(step / 8)
    need(step32 > 0 and np.isfinite(step32), f"{_PARAMETERS} step", "not above 0 and finite")
    need(edges[:1] == [0] and edges == sorted(set(edges)), f"{_PARAMETERS} edges", "not rising from 0")
    length = edges[-1] - 1
    need(0 <= length * classes <= 2**26, f"{_PARAMETERS} edges", "the basis is too large")
    scale = _npy(load("codec/scale.npy"), "<f4", length, "codec/scale.npy")
    mean = _npy(load("codec/mean.npy"), "<f2", classes, "codec/mean.npy")
    basis = _pcodec(load("codec/basis.pco"), (length, classes), "codec/basis.pco")
    vectors = np.full((length + 1, classes), 1 / math.sqrt(classes), np.float32)
    vectors[1:] = basis * scale[:, None]
    bands = [f"band_{k}" for k in range(len(edges) - 1)]

    def decode(rows: Sequence[Row], count: int) -> Decoded:
        row = rows[0]
        widths = [high - low for low, high in pairwise(edges)]
        parts = [_pcodec(row[name], (count, width), name) for name, width in zip(bands, widths, strict=True)]
        integers = np.concatenate(parts, axis=1)
        canonical = _little(integers)
        with np.errstate(over="ignore", invalid="ignore"):
            labels = mean.astype(np.float32) + (integers.astype(np.float32) * step32) @ vectors
            if peaks:
                places = _gaps(row["peak_gaps"], (count, peaks), classes, "peak_gaps")
                heights = _pcodec(row["peak_values"], (count, peaks), "peak_values")
                canonical += _little(places.astype(np.int32)) + _little(heights)
                labels[np.arange(count)[:, None], places] += heights.astype(np.float32) * eighth
        _finite(labels, "labels")
        if label_kind == "probabilities":
            labels = np.exp(labels - labels.max(axis=1, keepdims=True))
            labels /= labels.sum(axis=1, keepdims=True)
        return labels, canonical

    tables = hashlib.sha256(_little(basis) + _little(scale) + _little(mean)).digest()
    columns = _binary([*bands, *(["peak_gaps", "peak_values"] if peaks else [])])
    return Codec(columns, decode, identity=struct.pack("<dI", step, peaks) + tables)
