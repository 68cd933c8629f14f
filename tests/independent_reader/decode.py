"""Parquet's value encodings: PLAIN, the RLE/bit-packing hybrid, DELTA_BINARY_PACKED."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .schema import BOOLEAN, BYTES, DOUBLE, FIXED, FLOAT, INT32, INT64, Leaf

_DTYPES = {INT32: "<i4", INT64: "<i8", FLOAT: "<f4", DOUBLE: "<f8"}
_SLICE = 8 * 2**14  # values that are unpacked at once


class DecodeError(Exception):
    """Page bytes that do not decode to what the header promises."""


def unpack_bits(data: NDArray[np.uint8], width: int, out: NDArray[Any]) -> None:
    """Unpack unsigned integers of `width` bits, least significant bit first, until `out` is full."""
    count = out.size
    if data.size * 8 < count * width:
        raise DecodeError("bit-packed values run past their end")
    if width == 0:
        out[:] = 0
        return
    weights = np.uint64(1) << np.arange(width, dtype=np.uint64)
    for start in range(0, count, _SLICE):  # _SLICE is a multiple of 8, so slices start at whole bytes
        stop = min(start + _SLICE, count)
        chunk = data[start * width // 8 : -(-stop * width // 8)]
        bits = np.unpackbits(chunk, bitorder="little")[: (stop - start) * width]
        out[start:stop] = bits if width == 1 else bits.reshape(-1, width).astype(np.uint64) @ weights


def varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 64 bits."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise DecodeError("varint runs past its end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    else:
        raise DecodeError("varint of more than 64 bits")
    if value >= 2**64:
        raise DecodeError("varint of more than 64 bits")
    return value, position


def hybrid(data: bytes, position: int, end: int, width: int, out: NDArray[Any]) -> int:
    """Decode the RLE/bit-packing hybrid until `out` is full; give where it ends."""
    if width > 32:
        raise DecodeError(f"bit width {width}")
    count = out.size
    filled = 0
    raw = np.frombuffer(data, np.uint8)
    step = (width + 7) // 8
    while filled < count:
        head, position = varint(data, position, end)
        runs = head >> 1
        if head & 1:
            size = runs * width
            if size > end - position:
                raise DecodeError("bit-packed run runs past its end")
            here = min(runs * 8, count - filled)
            unpack_bits(raw[position : position + size], width, out[filled : filled + here])
            position += size
        else:
            here = runs
            if here > count - filled or step > end - position:
                raise DecodeError("run is longer than its page")
            value = int.from_bytes(data[position : position + step], "little")
            if value >> width:
                raise DecodeError(f"run value {value} of {width} bits")
            out[filled : filled + here] = value
            position += step
        filled += here
    return position


def delta(data: bytes, position: int, end: int, count: int, bits: int) -> tuple[NDArray[Any], int]:
    """Decode DELTA_BINARY_PACKED integers of 32 or 64 bits."""
    block, position = varint(data, position, end)
    minis, position = varint(data, position, end)
    total, position = varint(data, position, end)
    first, position = varint(data, position, end)
    if total != count:
        raise DecodeError(f"{total} values where the header has {count}")
    if block == 0 or block % 128 or minis == 0 or block % minis or (block // minis) % 32:
        raise DecodeError("impossible block sizes")
    mini = block // minis
    raw = np.frombuffer(data, np.uint8)
    deltas = np.zeros(count, np.uint64)
    if count:
        deltas[0] = ((first >> 1) ^ -(first & 1)) % 2**64
    filled = 1
    while filled < count:
        least, position = varint(data, position, end)
        least = ((least >> 1) ^ -(least & 1)) % 2**64
        widths = data[position : position + minis]
        position += minis
        if position > end:
            raise DecodeError("block runs past its end")
        for width in widths:
            if filled >= count:
                break
            size = mini * width // 8
            if width > 64 or size > end - position:
                raise DecodeError("miniblock runs past its end")
            here = min(mini, count - filled)
            unpack_bits(raw[position : position + size], width, deltas[filled : filled + here])
            deltas[filled : filled + here] += np.uint64(least)
            filled += here
            position += size
    values = np.cumsum(deltas, dtype=np.uint64)
    out: NDArray[Any] = values.astype(np.uint32).view("<i4") if bits == 32 else values.view("<i8")
    return out, position


def _strings(data: bytes, position: int, count: int) -> tuple[list[bytes], int]:
    """Decode byte strings, each after its length."""
    if count * 4 > len(data) - position:
        raise DecodeError("values run past their page")
    out: list[bytes] = []
    for _ in range(count):
        size = int.from_bytes(data[position : position + 4], "little")
        position += 4
        if size > len(data) - position:
            raise DecodeError("byte string runs past its page")
        out.append(data[position : position + size])
        position += size
    return out, position


def plain(data: bytes, position: int, leaf: Leaf, count: int) -> tuple[Any, int]:
    """Decode PLAIN values: an array, rows of bytes (fixed length) or a list of byte strings."""
    if leaf.physical == BYTES:
        return _strings(data, position, count)
    if leaf.physical == BOOLEAN:
        size = (count + 7) // 8
    elif leaf.physical == FIXED:
        size = count * leaf.length
    else:
        size = count * np.dtype(_DTYPES[leaf.physical]).itemsize
    if size > len(data) - position:
        raise DecodeError("values run past their page")
    end = position + size
    if leaf.physical in _DTYPES:
        return np.frombuffer(data, _DTYPES[leaf.physical], count, position), end
    raw = np.frombuffer(data, np.uint8, size, position)
    if leaf.physical == FIXED:
        return raw.reshape(count, leaf.length), end
    return np.unpackbits(raw, bitorder="little")[:count].astype(bool), end
