"""Parquet files of a pool: a proven footer, the schema of SPEC.md, pages with a CRC, rows as dictionaries."""

from __future__ import annotations

import hashlib
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .files import FileEntry, Refused, need

Row = dict[str, Any]
Thrift = dict[int, Any]
SPEC = (Path(__file__).parents[2] / "lpld_labels" / "SPEC.md").read_text()
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 2**28}
_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA_BINARY_PACKED, _RLE_DICTIONARY = 0, 2, 3, 5, 8
_ENCODINGS = (_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA_BINARY_PACKED, _RLE_DICTIONARY)
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2


def message(name: str) -> str:
    """Return the columns of a schema as SPEC.md prints it."""
    return SPEC.split(f"\nmessage {name} {{", 1)[1].split("\n}\n", 1)[0]


def _columns(metadata: pq.FileMetaData) -> str:
    """Return a file's columns in SPEC.md's notation."""
    text = str(metadata.schema)
    text = re.sub(r"field_id=-?\d+ ", "", text[text.index("{") + 1 : text.rindex("}")])
    text = re.sub(r"Int\(bitWidth=(\d+), isSigned=(\w+)\)", r"INTEGER(\1,\2)", text)
    text = re.sub(r" \(INTEGER\((32|64),true\)\)", "", text)
    return re.sub(r"\((String|List|Float16)\)", lambda match: match[0].upper(), text)


class Table:
    """One Parquet file. `is_payload`: whether a column must be PLAIN and not compressed."""

    def __init__(
        self, entry: FileEntry, data: bytes, columns: str, is_payload: Callable[[str], bool] = lambda _: False
    ) -> None:
        self.path, self._data, self._is_payload = entry.path, data, is_payload
        assert entry.footer_bytes is not None
        self._body = entry.bytes - entry.footer_bytes
        footer = data[self._body :]
        need(hashlib.sha256(footer).hexdigest() == entry.footer_digest, self.path, "another footer")
        whole = int.from_bytes(footer[-8:-4], "little") + 8 == entry.footer_bytes
        need(whole and data[:4] == footer[-4:] == b"PAR1", self.path, "not one Parquet file")
        try:
            self._file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            raise Refused(f"{self.path}: {error}") from error
        self._metadata = self._file.metadata
        need(_columns(self._metadata).split() == columns.split(), self.path, "another schema")
        self._groups = [self._metadata.row_group(number) for number in range(self._metadata.num_row_groups)]
        rows = [group.num_rows for group in self._groups]
        need(all(0 <= count <= 2**20 for count in rows), self.path, "a row group is too large")
        self._starts = list(accumulate(rows, initial=0))
        need(self._starts[-1] == self._metadata.num_rows == entry.rows, self.path, "another number of rows")
        self.column_bytes: dict[str, int] = {}
        self.payload_spans: list[tuple[int, int]] = []
        self._check_chunks()
        self._cached: tuple[int, list[Row]] = (-1, [])

    def group_of(self, row: int) -> int:
        """Return the row group that holds a row."""
        return bisect_right(self._starts, row) - 1

    def rows(self, first: int, count: int) -> list[Row]:
        """Return rows that lie in one row group, as those of a batch do."""
        group = self.group_of(first)
        need(first + count <= self._starts[group + 1], self.path, "a row group splits a batch")
        if self._cached[0] != group:
            try:
                self._cached = group, self._file.read_row_group(group).to_pylist()
            except (pa.ArrowException, OSError, ValueError) as error:
                raise Refused(f"{self.path}: {error}") from error
        start = first - self._starts[group]
        return self._cached[1][start : start + count]

    def all_rows(self) -> list[Row]:
        """Return all rows. `rows` of no row are none: files may have an empty row group."""
        spans = [(start, stop - start) for start, stop in pairwise(self._starts) if stop > start]
        return [row for start, count in spans for row in self.rows(start, count)]

    def check_growth(self, entry: FileEntry) -> None:
        """Refuse a table that takes far more memory than its file has bytes."""
        chunks = [group.column(number) for group in self._groups for number in range(group.num_columns)]
        unpacked = sum(chunk.total_uncompressed_size for chunk in chunks)
        need(unpacked <= 2**27 + 64 * entry.bytes, self.path, "far more than the file holds")

    def _check_chunks(self) -> None:
        """Refuse column chunks that do not lie side by side from byte 4 to the footer."""
        position = 4
        for group in self._groups:
            payload = []
            for number in range(group.num_columns):
                chunk = group.column(number)
                name, size = chunk.path_in_schema.split(".")[0], chunk.total_compressed_size
                start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
                placed = start == position or not group.num_rows
                need(placed and 0 <= size <= self._body - position, self.path, f"{name} is out of place")
                column = self._metadata.schema.column(number)
                width = _WIDTHS.get(column.physical_type, column.length)
                self._check_pages(chunk, position, group.num_rows, width)
                self.column_bytes[name] = self.column_bytes.get(name, 0) + size
                if self._is_payload(chunk.path_in_schema):
                    payload.append((position, size))
                position += size
            first = payload[0][0] if payload else position
            self.payload_spans.append((first, sum(size for _, size in payload)))
        need(position == self._body, self.path, "bytes that belong to no column")

    def _check_pages(self, chunk: pq.ColumnChunkMetaData, position: int, rows: int, width: int) -> None:
        """Refuse a chunk whose pages are not as "Integrity" wants them."""
        where, payload = f"{self.path} {chunk.path_in_schema}", self._is_payload(chunk.path_in_schema)
        compressions = ("UNCOMPRESSED",) if payload else ("UNCOMPRESSED", "ZSTD")
        need(chunk.compression in compressions, where, f"compression {chunk.compression}")
        repeated = ".list." in chunk.path_in_schema
        need(rows == chunk.num_values or (repeated and rows < chunk.num_values), where, "number of values")
        end, kinds = position + chunk.total_compressed_size, []
        while position < end:
            page, start = _page_header(self._data[position : min(end, position + 2**16)], where)
            size = page.get(3, -1)
            body = self._data[position + start : min(end, position + start + max(size, 0))]
            need(size == len(body), where, "page is cut off")
            need(4 in page, where, "page without a CRC")
            need(zlib.crc32(body) == page[4] & 0xFFFFFFFF, where, "page with another CRC")
            kinds.append(page.get(1))
            details = page.get(5 if kinds[-1] == _DATA_PAGE else 7, {})
            values, encoding = details.get(1, -1), details.get(2)
            need(0 <= page.get(2, -1) <= min((width + 16) * values + 1024, 2**30), where, "page is too large")
            if kinds[-1] == _DATA_PAGE:
                need(values == chunk.num_values, where, "page of another number of values")
                need(encoding in ((_PLAIN,) if payload else _ENCODINGS), where, f"encoding {encoding}")
                need(details.get(3) == details.get(4) == _RLE, where, "levels are not RLE")
            else:
                need(not payload and chunk.physical_type != "BYTE_ARRAY", where, "has a dictionary")
                need(0 <= values <= chunk.num_values, where, "dictionary of too many values")
                need(encoding in (_PLAIN, _PLAIN_DICTIONARY), where, f"dictionary of encoding {encoding}")
            position += start + size
        need(kinds in ([_DATA_PAGE], [_DICTIONARY_PAGE, _DATA_PAGE]) or not rows, where, f"pages {kinds}")


def _page_header(data: bytes, where: str) -> tuple[Thrift, int]:
    """Parse the page header at the start of `data`; return its fields by number, and its bytes."""
    reader = _Compact(data)
    try:
        return reader.struct(), reader.position
    except (IndexError, RecursionError) as error:
        raise Refused(f"{where}: no page header") from error


class _Compact:
    """Thrift's compact protocol, as far as page headers use it: integers, booleans, bytes and structs."""

    def __init__(self, data: bytes) -> None:
        self._data, self.position = data, 0

    def struct(self) -> Thrift:
        found: Thrift = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            found[number] = self._value(head & 15)
        return found

    def _value(self, kind: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind in (4, 5, 6):
            return self._integer()
        if kind == 8:  # bytes, which statistics have; nothing here needs them
            self.position += self._varint()
            return None
        if kind == 12:
            return self.struct()
        raise IndexError(kind)

    def _byte(self) -> int:
        self.position += 1
        return self._data[self.position - 1]

    def _varint(self) -> int:
        value, shift = 0, 0
        while (byte := self._byte()) >= 128:
            value |= (byte & 127) << shift
            shift += 7
        return value | (byte << shift)

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
