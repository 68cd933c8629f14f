"""Reading payload columns straight from their Parquet pages.

A payload column of a row group is one page of plain, uncompressed values. pyarrow can read it, but takes
longer over a row group than unpacking its labels takes, and holds about a megabyte of metadata for every
open file. A page map knows the place of each page instead, in a few bytes, so that the labels of a
thousand shards are read at random as fast as those of ten. Pages of other kinds are left to pyarrow.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from isal import isal_zlib

from lpld_labels.errors import PoolCorruptError
from lpld_labels.page_header import DATA_PAGE, PLAIN, parse_page_header
from lpld_labels.schema import Column

_LENGTH = struct.Struct("<I")


class PageMap:
    """Where the pages of some columns of one file are, by row group.

    columns: what is mapped, in the order of the arrays' second axis.
    """

    def __init__(self, metadata: pq.FileMetaData, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        shape = (metadata.num_row_groups, len(self.columns))
        self._place = np.zeros(shape, np.int64)
        self._bytes = np.zeros(shape, np.int64)
        self._count = np.zeros(shape, np.int64)
        # Found out when a page is first read: the length of its header, and its CRC-32.
        self._head = np.zeros(shape, np.uint16)
        self._crc = np.zeros(shape, np.uint32)
        numbers = _leaf_numbers(metadata)
        for group in range(shape[0]):
            row_group = metadata.row_group(group)
            for place, column in enumerate(self.columns):
                chunk = row_group.column(numbers[column.name])
                if chunk.compression == "UNCOMPRESSED" and not chunk.has_dictionary_page:
                    self._place[group, place] = chunk.data_page_offset
                    self._bytes[group, place] = chunk.total_compressed_size
                    self._count[group, place] = chunk.num_values

    @staticmethod
    def serves(columns: Sequence[Column]) -> bool:
        """Say whether columns are of kinds that can be mapped: never null, fixed width, bytes or lists."""
        return all(
            not column.nullable
            and (pa.types.is_binary(column.type) or _width(_value_type(column.type)) is not None)
            for column in columns
        )

    def read(self, file: pa.NativeFile, group: int, *, where: str) -> dict[str, pa.Array] | None:
        """Return the columns of a row group; None if one of their pages is not of the plain kind.

        Lists come flat, as the values of all of them. Arrays are views of the file where it is mapped.
        """
        found = {}
        for place, column in enumerate(self.columns):
            page = self._page(file, group, place, where)
            count = int(self._count[group, place])
            array = None if page is None else _array(page, column.type, count)
            if array is None:
                return None
            found[column.name] = array
        return found

    def _page(self, file: pa.NativeFile, group: int, place: int, where: str) -> pa.Buffer | None:
        """Return the checked body of a page."""
        size = int(self._bytes[group, place])
        if size == 0:
            return None
        file.seek(int(self._place[group, place]))
        chunk = file.read_buffer(size)
        if self._head[group, place] == 0:
            header = parse_page_header(memoryview(chunk).cast("B"))
            if (
                header is None
                or (header.kind, header.encoding) != (DATA_PAGE, PLAIN)
                or header.values != self._count[group, place]
                or header.length + header.page_bytes != chunk.size
                or header.crc is None
            ):
                return None
            self._head[group, place], self._crc[group, place] = header.length, header.crc
        page = chunk.slice(int(self._head[group, place]))
        if chunk.size != size or isal_zlib.crc32(memoryview(page)) != self._crc[group, place]:
            raise PoolCorruptError("page checksum does not match", where=where, hint="restore this file")
        return page


def _leaf_numbers(metadata: pq.FileMetaData) -> dict[str, int]:
    """Return the number of each column's values among the chunks of a row group, by the column's name."""
    schema = metadata.schema
    return {schema.column(number).path.split(".")[0]: number for number in range(metadata.num_columns)}


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


def _width(kind: pa.DataType) -> int | None:
    """Return the bytes of one value as Parquet and Arrow both store it, None if they differ."""
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_floating(kind):
        return int(kind.bit_width) // 8
    return None


def _array(page: pa.Buffer, kind: pa.DataType, count: int) -> pa.Array | None:
    """Return the `count` values of a page."""
    if pa.types.is_binary(kind):
        return _binary(page, count)
    value = _value_type(kind)
    width = _width(value)
    # Before the values of a list come the levels that say where lists begin; all are of one length here.
    spare = page.size - count * (width or 0)
    if width is None or spare < 0 or (spare and value is kind):
        return None
    return pa.Array.from_buffers(value, count, [None, page.slice(spare)])


def _binary(page: pa.Buffer, count: int) -> pa.Array | None:
    """Return byte strings, each of which follows its length; a single one is not copied."""
    data = memoryview(page)
    offsets: npt.NDArray[np.int32] = np.zeros(count + 1, np.int32)
    parts: list[memoryview] = []
    place = 0
    for number in range(count):
        if place + _LENGTH.size > len(data):
            return None
        (length,) = _LENGTH.unpack_from(data, place)
        start, place = place + _LENGTH.size, place + _LENGTH.size + length
        if place > len(data):
            return None
        parts.append(data[start:place])
        offsets[number + 1] = offsets[number] + length
    if place != len(data):
        return None
    content = page.slice(_LENGTH.size) if count == 1 else pa.py_buffer(b"".join(parts))
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), content])
