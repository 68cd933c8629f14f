"""Parquet files of a pool: a proven footer, the schema of SPEC.md, pages with a CRC, rows as dictionaries."""

import hashlib
import re
import zlib
from bisect import bisect_right
from collections import Counter
from itertools import accumulate, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from .manifest import Refused, Row, need

SPEC = (Path(__file__).parents[2] / "lpld_labels" / "SPEC.md").read_text()
_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA_BINARY_PACKED, _RLE_DICTIONARY = 0, 2, 3, 5, 8
_ENCODINGS = (_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA_BINARY_PACKED, _RLE_DICTIONARY)
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
KEYS = ("epoch", "batch", "slot", "image")
_COMPONENTS = {"flip": "flip", "mix_slot": "mix_index", "mix_strength": "mix_strength"}


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
    """One Parquet file of a pool."""

    def __init__(self, entry: Row, data: bytes, columns: str) -> None:
        self.path, self.role, self._data = entry["path"], entry["role"], data
        self._body = entry["bytes"] - entry["footer_bytes"]
        footer = data[self._body :]
        need(hashlib.sha256(footer).hexdigest() == entry["footer_digest"], self.path, "another footer")
        whole = int.from_bytes(footer[-8:-4], "little") + 8 == entry["footer_bytes"]
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
        need(sum(rows) == self._metadata.num_rows == entry["rows"], self.path, "another number of rows")
        self.component_bytes: Counter[str] = Counter()
        self.payload_spans: list[tuple[int, int]] = []
        self._check_chunks()
        self._cached: tuple[int, list[Row]] = (-1, [])

    def group_of(self, row: int) -> int:
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
        groups = [(start, stop - start) for start, stop in pairwise(self._starts) if stop > start]
        return [row for start, count in groups for row in self.rows(start, count)]

    def _component(self, column: str) -> str:
        if column in KEYS or self.role == "labels":
            return "keys" if column in KEYS else "labels"
        return "crop" if column.startswith("crop_") else _COMPONENTS.get(column, "mix_box")

    def _is_payload(self, column: str) -> bool:
        """Whether a column must be PLAIN and not compressed."""
        return (
            column == "image.bytes" if self.role == "packed" else self.role == "labels" and column not in KEYS
        )

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
                if group.num_rows:
                    self._check_pages(chunk, position, group.num_rows)
                self.component_bytes[self._component(name)] += size
                if self._is_payload(chunk.path_in_schema):
                    payload.append((position, size))
                position += size
            first = payload[0][0] if payload else position
            self.payload_spans.append((first, sum(size for _, size in payload)))
        need(position == self._body, self.path, "bytes that belong to no column")

    def _check_pages(self, chunk: pq.ColumnChunkMetaData, start: int, rows: int) -> None:
        """Refuse a chunk that is not one data page, after at most one dictionary page."""
        where, payload = f"{self.path} {chunk.path_in_schema}", self._is_payload(chunk.path_in_schema)
        compressions = ("UNCOMPRESSED",) if payload else ("UNCOMPRESSED", "ZSTD")
        need(chunk.compression in compressions, where, f"compression {chunk.compression}")
        nested = ".list." in chunk.path_in_schema
        need(rows == chunk.num_values or (nested and rows < chunk.num_values), where, "number of values")
        middle, end = chunk.data_page_offset, start + chunk.total_compressed_size
        need(start <= middle < end, where, "no data page")
        if middle > start:
            need(not payload and chunk.physical_type != "BYTE_ARRAY", where, "has a dictionary")
            values, encoding = _checked_page(self._data[start:middle], _DICTIONARY_PAGE, 2, where)
            plain = encoding in (_PLAIN, _PLAIN_DICTIONARY)
            need(plain and values <= chunk.num_values, where, "dictionary of another encoding, or too long")
        values, encoding, *levels = _checked_page(self._data[middle:end], _DATA_PAGE, 4, where)
        need(values == chunk.num_values, where, "page of another number of values")
        need(encoding in ((_PLAIN,) if payload else _ENCODINGS), where, f"encoding {encoding}")
        need(levels == [_RLE, _RLE], where, "levels are not RLE")


def _checked_page(page: bytes, kind: int, count: int, where: str) -> list[int]:
    """Check type, size and CRC of a page; return the first integers of the header of its type.

    A page header is a Thrift struct: type, 2 sizes, CRC, then a struct: field 5 for data, 7 dictionaries.
    """
    try:
        (found, _, size, crc), position = _integers(page, 0, 4)
        need(page[position] == (0x1C if kind == _DATA_PAGE else 0x3C), where, "page of another type")
        details, position = _integers(page, position + 1, count)
    except (IndexError, ValueError) as error:
        raise Refused(f"{where}: page without a CRC, or of another type") from error
    whole = 0 <= size <= len(page) - position and page[: len(page) - size].endswith(b"\0\0")
    need(found == kind and whole, where, "page of another type or size")
    need(zlib.crc32(page[len(page) - size :]) == crc & 0xFFFFFFFF, where, "page with another CRC")
    return details


def _integers(data: bytes, position: int, count: int) -> tuple[list[int], int]:
    """Read Thrift fields that are 32-bit integers: zigzag numbers in groups of seven bits."""
    found = []
    for _ in range(count):
        if data[position] != 0x15:
            raise ValueError(data[position])
        value, shift = 0, 0
        while data[position := position + 1] >= 128:
            value |= (data[position] & 127) << shift
            shift += 7
        value |= data[position] << shift
        found.append((value >> 1) ^ -(value & 1))
        position += 1
    return found, position
