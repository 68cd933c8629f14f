"""Payload blobs: zstd frames, byte planes, pcodec blobs, npy tables."""

from __future__ import annotations

import ast
import math
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray
from pcodec import standalone

from .errors import Refused, need

_MAGIC = b"\x28\xb5\x2f\xfd"
_PCODEC_VERSION = 3


def _check_frame(data: bytes, expected: int, file: str, field: str) -> None:
    """Walk over one zstd frame: check its header and that it takes all bytes."""
    position = 0

    def take(size: int) -> bytes:
        """Take bytes of the frame."""
        nonlocal position
        need(size <= len(data) - position, file, field, "zstd frame is cut off")
        position += size
        return data[position - size : position]

    need(take(4) == _MAGIC, file, field, "no zstd frame where one belongs")
    descriptor = take(1)[0]
    single = bool(descriptor & 0x20)
    if not single:
        take(1)  # the window does not matter where the content size bounds the output
    dictionary = int.from_bytes(take((0, 1, 2, 4)[descriptor & 3]), "little")
    need(dictionary == 0, file, field, "zstd frame with a dictionary")
    kind = descriptor >> 6
    need(kind or single, file, field, "zstd frame without a content size")
    content = int.from_bytes(take((1, 2, 4, 8)[kind]), "little") + (256 if kind == 1 else 0)
    need(content == expected, file, field, f"zstd frame of {content} bytes where {expected} belong")
    while True:
        head = int.from_bytes(take(3), "little")
        kind, size = head >> 1 & 3, head >> 3
        need(kind != 3, file, field, "zstd block of a reserved type")
        take(1 if kind == 1 else size)
        if head & 1:
            break
    if descriptor & 4:
        take(4)
    need(position == len(data), file, field, "bytes after the zstd frame")


def unzstd(data: bytes, size: int, file: str, field: str) -> bytes:
    """Decompress exactly one frame of a content that is known in size, with nothing before or after it."""
    _check_frame(data, size, file, field)
    try:
        decoder = zstandard.ZstdDecompressor(max_window_size=2**31)
        out = decoder.decompress(data, max_output_size=max(size, 1), allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Refused(file, field, f"zstd: {error}") from error
    need(len(out) == size, file, field, "zstd frame of another size than its header says")
    return out


def join_planes(planes: list[bytes], dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Put byte k of item i together from planes."""
    items = np.empty((math.prod(shape), len(planes)), np.uint8)
    for k, plane in enumerate(planes):
        items[:, k] = np.frombuffer(plane, np.uint8)
    return items.reshape(-1).view(dtype).reshape(shape)


def byte_planes(data: bytes, dtype: str, shape: tuple[int, ...], file: str, field: str) -> NDArray[Any]:
    """Decode an array stored as byte planes in one blob."""
    planes, position = [], 0
    for _ in range(np.dtype(dtype).itemsize):
        need(len(data) - position >= 4, file, field, "byte planes are cut off")
        start = position + 4
        position = start + int.from_bytes(data[position:start], "little")
        need(position <= len(data), file, field, "byte plane runs past its blob")
        planes.append(unzstd(data[start:position], math.prod(shape), file, field))
    need(position == len(data), file, field, "bytes after the last byte plane")
    return join_planes(planes, dtype, shape)


def pcodec_int16(data: bytes, shape: tuple[int, ...], file: str, field: str) -> NDArray[np.int16]:
    """Decode a pcodec blob of int16 with exactly so many values."""
    count = math.prod(shape)
    need(data[:4] == b"pco!", file, field, "no pcodec blob")
    need(len(data) > 4 and data[4] <= _PCODEC_VERSION, file, field, "a newer version of pcodec's format")
    out = np.zeros(count, np.int16)
    try:
        progress = standalone.simple_decompress_into(data, out)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a Rust panic is no Exception
        raise Refused(file, field, f"pcodec: {error}") from error
    need(progress.finished and progress.n_processed == count, file, field, f"not {count} pcodec values")
    return out.reshape(shape)


def npy_vector(data: bytes, dtype: str, count: int, file: str) -> NDArray[Any]:
    """Decode a one-dimensional npy table of format version 1.0."""
    need(data[:8] == b"\x93NUMPY\x01\x00", file, "header", "not npy version 1.0")
    start = 10 + int.from_bytes(data[8:10], "little")
    need(10 < start <= len(data), file, "header", "runs past the file's end")
    try:
        header = ast.literal_eval(data[10:start].decode("latin1").strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise Refused(file, "header", f"does not parse: {error}") from error
    wanted = {"descr": dtype, "fortran_order": False, "shape": (count,)}
    need(isinstance(header, dict) and header == wanted, file, "header", f"not {wanted}")
    size = count * np.dtype(dtype).itemsize
    need(len(data) == start + size, file, "data", f"not {size} bytes")
    return np.frombuffer(data, dtype, count, start)
