"""Reading the values of an uncompressed list column straight from its Parquet page.

Parquet stores a list column as repetition levels, definition levels, then the values. Decoding the
levels of 128,000 halves costs more than everything else about reading a batch, and for lists that
are all full and of one length they say nothing. So this takes a page whose values are plain,
uncompressed and complete, checks its CRC, and hands out the tail of the page, where the values are.
Anything else is left to pyarrow (`find_plain_page` returns None).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from isal import isal_zlib

from lpld_labels.errors import PoolCorruptError

_DATA_PAGE = 0
_MAX_DEPTH = 4
"""Structs inside structs; page headers have three."""
_PLAIN = 0
# Thrift compact protocol: field types that need skipping, by their low four bits.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


@dataclass(frozen=True, kw_only=True)
class _PageHeader:
    length: int
    kind: int
    page_bytes: int
    crc: int | None
    values: int
    encoding: int


@dataclass(frozen=True, kw_only=True)
class PlainPage:
    """Where the body of a plain page lies in its file; its last `tail` bytes are the values."""

    start: int
    size: int
    crc: int | None
    tail: int

    def values(self, file: pa.NativeFile, *, where: str) -> pa.Buffer:
        """Read the page, check it and return its values."""
        file.seek(self.start)
        page = file.read_buffer(self.size)
        if page.size != self.size or (self.crc is not None and isal_zlib.crc32(memoryview(page)) != self.crc):
            raise PoolCorruptError("page checksum does not match", where=where, hint="restore this file")
        return page.slice(self.size - self.tail)


def find_plain_page(
    file: pa.NativeFile, chunk: pq.ColumnChunkMetaData, *, count: int, width: int
) -> PlainPage | None:
    """Return the page of a chunk that is one plain page of `count` values of `width` bytes, else None."""
    if chunk.compression != "UNCOMPRESSED" or chunk.has_dictionary_page or chunk.num_values != count:
        return None
    # Only a memory map hands out bytes without copying; elsewhere pyarrow's own way is as good.
    file.seek(chunk.data_page_offset)
    raw = file.read_buffer(chunk.total_compressed_size)
    header = _parse_header(memoryview(raw).cast("B"))
    if (
        header is None
        or (header.kind, header.encoding, header.values) != (_DATA_PAGE, _PLAIN, count)
        or header.length + header.page_bytes != raw.size
        or header.page_bytes < count * width
    ):
        return None
    return PlainPage(
        start=chunk.data_page_offset + header.length,
        size=header.page_bytes,
        crc=None if header.crc is None else header.crc & 0xFFFFFFFF,
        tail=count * width,
    )


def _parse_header(data: memoryview) -> _PageHeader | None:
    """Read a Thrift PageHeader; None if it is not one."""
    try:
        cursor = _Cursor(data)
        top = cursor.struct(nested=5)
    except (IndexError, ValueError):
        return None
    page = {field: value for (parent, field), value in top.items() if parent == 5}
    head = {field: value for (parent, field), value in top.items() if parent == 0}
    if not {1, 3} <= head.keys() or not {1, 2} <= page.keys():
        return None
    return _PageHeader(
        length=cursor.position,
        kind=head[1],
        page_bytes=head[3],
        crc=head.get(4),
        values=page[1],
        encoding=page[2],
    )


class _Cursor:
    """Just enough of Thrift's compact protocol for page headers."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    def _byte(self) -> int:
        value = self._data[self.position]
        self.position += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("varint too long")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self, *, nested: int = 0, parent: int = 0, depth: int = 1) -> dict[tuple[int, int], int]:
        """Return the integer fields of a struct as (parent, field) -> value, entering field `nested`."""
        if depth > _MAX_DEPTH:
            raise ValueError("structs are nested too deep for a page header")
        found: dict[tuple[int, int], int] = {}
        field = 0
        while byte := self._byte():
            delta, kind = byte >> 4, byte & 0x0F
            field = field + delta if delta else self._zigzag()
            if kind in (_I16, _I32, _I64):
                found[parent, field] = self._zigzag()
            elif kind == _STRUCT:
                inner = self.struct(parent=field, depth=depth + 1)
                if field == nested:
                    found |= inner
            elif kind == _BINARY:
                length = self._varint()
                self.position += length
            elif kind == _BYTE:
                self.position += 1
            elif kind == _DOUBLE:
                self.position += 8
            elif kind not in (_TRUE, _FALSE):
                raise ValueError(f"field type {kind} does not occur in page headers")
        return found
