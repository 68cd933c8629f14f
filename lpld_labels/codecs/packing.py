"""Pack arrays into bytes: zstd frames, byte planes, class sets, and pcodec integers.

byte planes  Plane k holds byte k (0 = least significant) of every value. Each plane is its own zstd frame,
             because exponents and mantissas need different entropy tables. A blob holds its frames in
             order, each preceded by its length (uint32).
class sets   The class indices of each row, ascending, stored as gaps: the first index, then each index
             minus its predecessor minus 1. Gaps are small numbers, which byte planes compress well.
bands        Runs of adjacent coefficients with similar spread. Each band of a batch is one `pcodec` file
             (https://github.com/pcodec/pcodec) with its own statistics, so batches decode independently.

Unpacking treats its input as untrusted and refuses results larger than the caller expects.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zstandard

from lpld_labels.errors import InvalidBatchError, LabelPoolError, PoolCorruptError
from lpld_labels.format.records import IntArray

Integers = npt.NDArray[np.int16]

FRAME_LEVEL = 3
PLANE_LEVEL = 9
_LENGTH = struct.Struct("<I")

PCODEC_LEVEL = 8  # Level 12 gains nothing on these numbers, level 4 costs 6 %.
SPREAD_RATIO = 2.0  # Bands end where the spread falls by this factor. Fewer bands cost 2 %; more add headers.
SMALLEST_BAND = 1024  # Minimum values per band in a full batch. The headers of a band take about 25 bytes.
LARGEST = np.iinfo(np.int16).max


class Zstd(threading.local):
    """A thread's zstd compressors, reused because creating one takes a third of the time of compressing."""

    def __init__(self) -> None:
        self.fast = zstandard.ZstdCompressor(level=FRAME_LEVEL)
        self.small = zstandard.ZstdCompressor(level=PLANE_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


ZSTD = Zstd()


def decompressed(frame: pa.Buffer | memoryview, size: int, *, where: str) -> npt.NDArray[np.uint8]:
    """Decompress exactly one zstd frame, which must declare `size` bytes. Refuse trailing bytes."""
    data = memoryview(frame).cast("B")
    try:
        declared = zstandard.get_frame_parameters(data).content_size
        if declared != size:
            raise PoolCorruptError(
                "label payload has the wrong length", where=where, expected=f"{size} bytes", got=declared
            )
        return np.frombuffer(ZSTD.decompressor.decompress(data, allow_extra_data=False), np.uint8)
    except zstandard.ZstdError as error:
        raise PoolCorruptError(f"label payload is not a single zstd frame: {error}", where=where) from None


def pack_planes(values: npt.NDArray[Any]) -> bytes:
    """Pack an array's values, in row-major order and little endian, into compressed byte planes."""
    flat = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(-1)
    planes = flat.view(np.uint8).reshape(-1, flat.dtype.itemsize)
    frames = [ZSTD.small.compress(planes[:, k].tobytes()) for k in range(flat.dtype.itemsize)]
    return b"".join([_LENGTH.pack(len(frame)) + frame for frame in frames])


def unpack_planes(
    blob: pa.Buffer, dtype: npt.DTypeLike, shape: tuple[int, ...], *, where: str
) -> npt.NDArray[Any]:
    """Undo `pack_planes`."""
    kind = np.dtype(dtype).newbyteorder("<")
    count = int(np.prod(shape))
    planes = np.empty((count, kind.itemsize), np.uint8)
    start = 0
    for k in range(kind.itemsize):
        if start + _LENGTH.size > blob.size:
            wanted = f"{kind.itemsize} byte planes"
            raise PoolCorruptError("label payload ends early", where=where, expected=wanted, got=k)
        (length,) = _LENGTH.unpack(memoryview(blob)[start : start + _LENGTH.size])
        start += _LENGTH.size
        if start + length > blob.size:
            raise PoolCorruptError("byte plane extends beyond the label payload", where=where, got=length)
        planes[:, k] = decompressed(blob.slice(start, length), count, where=where)
        start += length
    if start != blob.size:
        raise PoolCorruptError("label payload has trailing bytes", where=where, expected=start, got=blob.size)
    values: npt.NDArray[Any] = planes.reshape(-1).view(kind)
    return values.reshape(shape)


def pack_sets(indices: IntArray, classes: int) -> bytes:
    """Pack class indices [B, k], ascending in each row, into one blob."""
    gaps = np.diff(indices, axis=1, prepend=-1) - 1
    return pack_planes(gaps.astype(index_dtype(classes)))


def unpack_sets(blob: pa.Buffer, shape: tuple[int, int], classes: int, *, where: str) -> IntArray:
    """Undo `pack_sets`: int32 [B, k]. Refuse indices that are not below `classes`."""
    gaps = unpack_planes(blob, index_dtype(classes), shape, where=where).astype(np.int64)
    indices = np.cumsum(gaps + 1, axis=1) - 1
    if indices.size and indices[:, -1].max() >= classes:
        raise PoolCorruptError(
            "stored class index out of range",
            where=where,
            expected=f"below {classes}",
            got=int(indices[:, -1].max()),
        )
    return indices.astype(np.int32)


def index_dtype(count: int) -> np.dtype[Any]:
    """Return the dtype in which integers below `count` are stored."""
    return np.dtype("<u2" if count <= 1 << 16 else "<u4")


def pack_integers(values: npt.NDArray[np.floating[Any]] | Integers) -> bytes:
    """Pack integers of any shape, in row-major order, into one pcodec file of int16."""
    if values.size and not np.abs(values).max() <= LARGEST:
        raise InvalidBatchError(
            "label is far outside the range that the codec was fitted to",
            expected=f"coefficients of at most {LARGEST} steps",
            got=int(np.abs(values).max()),
            hint="check the teacher's output, or use codec 'f16'",
        )
    standalone, config = _pcodec()
    flat = np.ascontiguousarray(values, np.int16).reshape(-1)
    packed: bytes = standalone.simple_compress(flat, config)
    return packed


def unpack_integers(blob: bytes, shape: tuple[int, ...], *, where: str) -> Integers:
    """Undo `pack_integers`."""
    values = np.empty(int(np.prod(shape)), np.int16)
    standalone, _ = _pcodec()
    try:
        progress = standalone.simple_decompress_into(blob, values)
    except RuntimeError as error:
        raise PoolCorruptError(f"label payload does not decompress: {error}", where=where) from None
    if progress.n_processed != values.size or not progress.finished:
        raise PoolCorruptError(
            "label payload has the wrong length",
            where=where,
            expected=f"{values.size} values",
            got=progress.n_processed if progress.finished else f"more than {values.size}",
        )
    return values.reshape(shape)


def band_edges(spreads: npt.NDArray[np.floating[Any]], rows: int) -> tuple[int, ...]:
    """Return the edges (0 to n) of bands of n coefficients. spreads: [n], descending. rows: batch size."""
    count = len(spreads)
    width = max(1, SMALLEST_BAND // max(rows, 1))
    edges = [0]
    for place in range(count):
        wide_enough = place - edges[-1] >= width and count - place >= width
        if wide_enough and spreads[edges[-1]] > SPREAD_RATIO * spreads[place]:
            edges.append(place)
    return (*edges, count) if count else (0,)


def pack_bands(values: npt.NDArray[np.floating[Any]], edges: Sequence[int]) -> list[bytes]:
    """Pack integers [rows, n] into one blob per band of columns."""
    return [pack_integers(values[:, low:high]) for low, high in pairwise(edges)]


def unpack_bands(
    blobs: Sequence[bytes], edges: Sequence[int], rows: int, *, names: Sequence[str]
) -> Integers:
    """Undo `pack_bands`: int16 [rows, n]."""
    values = np.empty((rows, edges[-1]), np.int16)
    for blob, name, (low, high) in zip(blobs, names, pairwise(edges), strict=True):
        values[:, low:high] = unpack_integers(blob, (rows, high - low), where=name)
    return values


@cache
def _pcodec() -> tuple[Any, Any]:
    """Import pcodec, which only `klt` needs; return its standalone module and compression settings."""
    try:
        import pcodec
        from pcodec import standalone
    except ImportError:
        raise LabelPoolError(
            "codec 'klt' requires the package pcodec", hint="pip install 'pcodec>=1.0'"
        ) from None
    config = pcodec.ChunkConfig(
        compression_level=PCODEC_LEVEL,
        # Adjacent coefficients are independent: deltas and common divisors gain nothing.
        delta_spec=pcodec.DeltaSpec.no_op(),
        mode_spec=pcodec.ModeSpec.classic(),
    )
    return standalone, config
