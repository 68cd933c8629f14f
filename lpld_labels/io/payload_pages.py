"""The payload of one labels row group, straight from its pages.

The batch index says where the pages lie and how many rows they have; each page's header and CRC are checked
here before a byte of it is used. Reading them without Arrow's Parquet reader spares the file's footer, so
that a batch costs the same in a pool of one shard and in one of a thousand. Values stay where they were
read, but for binary ones of which a page has several.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from isal import isal_zlib

from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.arrow import Array
from lpld_labels.format.limits import MAX_HEADER_BYTES
from lpld_labels.format.schema import Column
from lpld_labels.io.page_headers import DATA_PAGE, PLAIN, RLE, PageHeader, parse_header

_LENGTH = 4
"""Bytes of the length before a binary value and before a run of levels."""


def parse_payload(
    pages: pa.Buffer, columns: Sequence[Column], *, rows: int, classes: int, where: str
) -> dict[str, Array]:
    """Return the payload columns, each an array of `rows` values.

    pages: the payload pages of a row group, one for each column, side by side. classes: length of lists.
    """
    data = memoryview(pages).cast("B")
    arrays: dict[str, Array] = {}
    start = 0
    for column in columns:
        place = f"{where}, column {column.name}"
        header = _checked_header(data[start:], column, rows, classes, place)
        body = pages.slice(start + header.length, header.stored)
        if isal_zlib.crc32(memoryview(body)) != header.crc:
            raise PoolCorruptError("page checksum does not match", where=place, hint="restore this file")
        arrays[column.name] = _array(body, column, rows, classes, place)
        start += header.length + header.stored
    if start != len(data):
        raise PoolCorruptError(
            "payload pages do not fill their place", where=where, expected=len(data), got=start
        )
    return arrays


def _checked_header(data: memoryview, column: Column, rows: int, classes: int, where: str) -> PageHeader:
    """Read a page header and refuse any but that of one plain, uncompressed, checksummed page."""
    try:
        header = parse_header(data[:MAX_HEADER_BYTES])
    except ValueError as error:
        raise PoolCorruptError(f"page header is damaged: {error}", where=where) from None
    values = rows * classes if pa.types.is_list(column.type) else rows
    wanted = {
        "kind": (DATA_PAGE, header.kind),
        "encoding": (PLAIN, header.encoding),
        "encoding of levels": ((RLE, RLE), header.levels),
        "number of values": (values, header.values),
        "decompressed size": (header.stored, header.plain),
    }
    for field, (expected, got) in wanted.items():
        if expected != got:
            raise PoolCorruptError(f"page has another {field}", where=where, expected=expected, got=got)
    if header.crc is None:
        raise PoolCorruptError("page has no checksum", where=where, hint="restore this file")
    if not 0 <= header.stored <= len(data) - header.length:
        raise PoolCorruptError("page reaches beyond its place", where=where, got=header.stored)
    return header


def _array(body: pa.Buffer, column: Column, rows: int, classes: int, where: str) -> Array:
    kind = column.type
    if pa.types.is_list(kind):
        values = _fixed(body, kind.value_type, rows * classes, where, levels=True)
        return pa.FixedSizeListArray.from_arrays(values, classes)
    if not pa.types.is_binary(kind):
        return _fixed(body, kind, rows, where)
    if not column.nullable:
        return _binary(body, 0, np.ones(rows, bool), where)
    present, start = _definition_levels(memoryview(body).cast("B"), rows, where)
    return _binary(body, start, present, where)


def _fixed(body: pa.Buffer, kind: pa.DataType, count: int, where: str, *, levels: bool = False) -> Array:
    """Return values of fixed width over the page's own memory; `levels` may stand before them."""
    size = count * (kind.bit_width // 8)
    # Levels of lists that are all full and of one length say nothing; the values are the tail of the page.
    if body.size < size or (body.size > size and not levels):
        raise PoolCorruptError("page has the wrong length", where=where, expected=size, got=body.size)
    return pa.Array.from_buffers(kind, count, [None, body.slice(body.size - size)])


def _binary(
    body: pa.Buffer, start: int, present: np.ndarray[tuple[int], np.dtype[np.bool_]], where: str
) -> Array:
    """Return binary values, each stored as its length and its bytes, from `start` on."""
    data = memoryview(body).cast("B")
    places: list[slice] = []
    size, ends = 0, [0]
    for there in present.tolist():
        if there:
            length = int.from_bytes(data[start : start + _LENGTH], "little")
            begin, start = start + _LENGTH, start + _LENGTH + length
            if start > len(data):
                raise PoolCorruptError("binary value reaches beyond its page", where=where)
            places.append(slice(begin, start))
            size += length
        ends.append(size)
    if start != len(data):
        raise PoolCorruptError("page has bytes left over", where=where, expected=start, got=len(data))
    # Put together by hand: made of memoryviews, an array of Arrow's leaves each of them, and the page it is
    # of, in memory for good (pyarrow takes a reference and never gives it back).
    nulls = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little").data)
    values = _joined(body, places, size)
    offsets = np.array(ends, np.int32)
    return pa.Array.from_buffers(pa.binary(), len(present), [nulls, pa.py_buffer(offsets.data), values])


def _joined(body: pa.Buffer, places: Sequence[slice], size: int) -> pa.Buffer:
    """Return parts of a page side by side: one as it is, several in memory of Arrow's pool, which is warm."""
    if len(places) == 1:
        return body.slice(places[0].start, size)
    values = pa.allocate_buffer(size)
    data, copy = memoryview(body).cast("B"), memoryview(values).cast("B")
    done = 0
    for place in places:
        part = data[place]
        copy[done : done + len(part)] = part
        done += len(part)
    return values


def _definition_levels(
    data: memoryview, rows: int, where: str
) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], int]:
    """Return which of a nullable column's values are there, and where the values begin.

    One-bit levels in Parquet's mix of runs (even header: count and value) and packed bits (odd header:
    groups of eight).
    """
    stop = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    present = np.zeros(rows, bool)
    at, filled = _LENGTH, 0
    try:
        while filled < rows:
            header, at = _varint(data[:stop], at)
            if header & 1:
                size = header >> 1
                bits = np.unpackbits(np.frombuffer(data[at : at + size], np.uint8), bitorder="little")
                taken = min(rows - filled, len(bits), 8 * size)
                present[filled : filled + taken] = bits[:taken]
                at += size
            else:
                taken = min(rows - filled, header >> 1)
                present[filled : filled + taken] = bool(data[at])
                at += 1
            if taken == 0:
                break
            filled += taken
    except IndexError:
        filled = -1
    if filled != rows or at != stop or stop > len(data):
        raise PoolCorruptError("definition levels are damaged", where=where, hint="restore this file")
    return present, stop


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 35:
            return value, at
