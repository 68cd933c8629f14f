"""Parquet files whose footer and pages are proven before Arrow sees them.

Arrow trusts a footer: a flipped bit in one can end the whole process. So the footer's bytes are compared
with the manifest's digest first, what it says is held against the file and the format, and every page is
checked (header, CRC, sizes) before its row group is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from isal import isal_zlib
from pyarrow import fs

from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.files import FileEntry
from lpld_labels.format.paths import MAX_PATH_BYTES
from lpld_labels.format.schema import MAX_GROUP_ROWS, MAX_HEADER_BYTES, MAX_PAGE_BYTES
from lpld_labels.pool.page_headers import (
    DATA_PAGE,
    DICTIONARY_PAGE,
    ENCODINGS,
    RLE,
    PageHeader,
    parse_header,
)

_MAGIC = b"PAR1"
_COMPRESSIONS = ("UNCOMPRESSED", "ZSTD")
_RESTORE = "restore this file"
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8}
_LONGEST_STRING = 4 + MAX_PATH_BYTES
_SPARE_PER_VALUE, _SPARE = 16, 1024
"""What levels, and headers of encodings, may add to a page."""


class ProvenParquet:
    """One Parquet file of a pool. Opening proves its footer; reading proves the pages it decodes.

    entry: what the manifest says of it. schema: the columns it must have.
    """

    def __init__(self, file: pa.NativeFile, entry: FileEntry, schema: pa.Schema, *, where: str) -> None:
        self.where = where
        self._file = file
        self._size = entry.bytes - (entry.footer_bytes or 0)
        self.metadata = _proven_footer(file, entry, where)
        self._check(entry, schema)

    def _check(self, entry: FileEntry, schema: pa.Schema) -> None:
        found = self.metadata.schema.to_arrow_schema()
        if not found.remove_metadata().equals(schema):
            raise PoolCorruptError(
                "columns differ from the format", where=self.where, expected=schema.names, got=found.names
            )
        counts = np.diff(self.starts)
        if self.metadata.num_rows != entry.rows or int(self.starts[-1]) != entry.rows:
            raise PoolCorruptError(
                "row groups do not add up", where=self.where, expected=entry.rows, got=int(self.starts[-1])
            )
        if len(counts) and (counts.min() < 0 or counts.max() > MAX_GROUP_ROWS):
            raise PoolCorruptError(
                "a row group is too large",
                where=self.where,
                expected=f"at most {MAX_GROUP_ROWS} rows",
                got=int(counts.max()),
            )

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """First row of each row group, and the number of all rows: int64 [groups + 1]."""
        groups = range(self.metadata.num_row_groups)
        return np.cumsum([0, *(self.metadata.row_group(g).num_rows for g in groups)], dtype=np.int64)

    @cached_property
    def _parquet(self) -> pq.ParquetFile:
        return pq.ParquetFile(self._file, metadata=self.metadata, pre_buffer=False)

    def group_of(self, row: int, rows: int) -> tuple[int, int]:
        """Return the row group that holds rows [row, row + rows) and where in it they start."""
        group = int(np.searchsorted(self.starts, row, side="right")) - 1
        if row < 0 or group + 1 >= len(self.starts) or row + rows > self.starts[group + 1]:
            raise PoolCorruptError(
                "batch index points outside the file",
                where=self.where,
                expected=f"rows below {int(self.starts[-1])} within one row group",
                got=f"rows {row} to {row + rows}",
            )
        return group, row - int(self.starts[group])

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a row group, or some of its columns; other columns' bytes are not touched."""
        if self.starts[group] == self.starts[group + 1]:
            # It has no pages: nothing to prove, and nothing for Arrow to stumble over.
            schema = self.metadata.schema.to_arrow_schema()
            return schema.empty_table() if columns is None else schema.empty_table().select(columns)
        self._prove_pages(group, columns)
        try:
            table = self._parquet.read_row_group(
                group, columns=None if columns is None else list(columns), use_threads=False
            )
        except (pa.ArrowException, OSError) as error:
            raise PoolCorruptError(
                f"row group {group} is damaged: {error}", where=self.where, hint=_RESTORE
            ) from None
        expected = int(self.starts[group + 1] - self.starts[group])
        if table.num_rows != expected:
            raise PoolCorruptError(
                f"row group {group} has the wrong length",
                where=self.where,
                expected=expected,
                got=table.num_rows,
            )
        return table

    def read_all(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the whole file, or some columns of it."""
        groups = [self.read(group, columns) for group in range(self.metadata.num_row_groups)]
        schema = self.metadata.schema.to_arrow_schema()
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        return pa.concat_tables(groups) if groups else schema.empty_table()

    def _prove_pages(self, group: int, columns: Sequence[str] | None) -> None:
        """Check every page of the columns against the footer and its own checksum."""
        row_group = self.metadata.row_group(group)
        for number in range(row_group.num_columns):
            chunk = row_group.column(number)
            name = chunk.path_in_schema.split(".", 1)[0]
            if columns is not None and name not in columns:
                continue
            place = f"{self.where}, row group {group}, column {name}"
            _check_chunk(chunk, self._size, place)
            column = self.metadata.schema.column(number)
            if column.max_repetition_level == 0 and chunk.num_values != row_group.num_rows:
                raise PoolCorruptError(
                    "column has another number of values than its row group has rows",
                    where=place,
                    expected=row_group.num_rows,
                    got=chunk.num_values,
                )
            self._file.seek(_chunk_start(chunk))
            width = _value_width(column)
            _prove_chunk(self._file.read_buffer(chunk.total_compressed_size), chunk, width, place)


def open_file(system: fs.FileSystem, path: str, *, mapped: bool = True) -> pa.NativeFile:
    """Open a file for random access; a missing one is a corrupt pool.

    mapped: map a local file into memory, which pays where it stays open.
    """
    try:
        if isinstance(system, fs.LocalFileSystem):
            return pa.memory_map(path) if mapped else pa.OSFile(path, "rb")
        return system.open_input_file(path)
    except FileNotFoundError:
        raise PoolCorruptError("file is missing", where=path, hint="restore it or rebuild the pool") from None
    except OSError as error:
        raise PoolCorruptError(f"cannot open: {error}", where=path) from None


def _proven_footer(file: pa.NativeFile, entry: FileEntry, where: str) -> pq.FileMetaData:
    """Return the file's metadata, once its bytes are known to be those the manifest names."""
    if entry.footer_bytes is None or entry.bytes > file.size():
        raise PoolCorruptError("file is shorter than its footer", where=where, hint=_RESTORE)
    file.seek(entry.bytes - entry.footer_bytes)
    footer = file.read(entry.footer_bytes)
    if bytes_digest(footer) != entry.footer_digest:
        raise PoolCorruptError(
            "file's footer is not the one the manifest names",
            where=where,
            expected=f"SHA-256 {str(entry.footer_digest)[:12]}...",
            got=f"{bytes_digest(footer)[:12]}...",
            hint=_RESTORE,
        )
    length = int.from_bytes(footer[-8:-4], "little")
    if footer[-4:] != _MAGIC or length + 8 != len(footer):
        raise PoolCorruptError("not a Parquet footer", where=where, hint=_RESTORE)
    try:
        return pq.read_metadata(pa.BufferReader(_MAGIC + footer))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise PoolCorruptError(f"not a readable Parquet footer: {error}", where=where) from None


def _chunk_start(chunk: pq.ColumnChunkMetaData) -> int:
    dictionary = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    return int(chunk.data_page_offset if dictionary is None else dictionary)


def _check_chunk(chunk: pq.ColumnChunkMetaData, size: int, where: str) -> None:
    """Refuse a column chunk outside the file's data or of a kind that pools do not have."""
    start, length = _chunk_start(chunk), chunk.total_compressed_size
    if start < len(_MAGIC) or length < 0 or start + length > size:
        raise PoolCorruptError(
            "column chunk lies outside the data", where=where, expected=f"below {size}", got=(start, length)
        )
    if chunk.compression not in _COMPRESSIONS:
        raise PoolCorruptError(
            "compression is not one of the format's",
            where=where,
            expected=" or ".join(_COMPRESSIONS),
            got=chunk.compression,
        )
    unknown = set(chunk.encodings) - set(ENCODINGS.values())
    if unknown:
        raise PoolCorruptError(
            "encoding is not one of the format's", where=where, expected=list(ENCODINGS.values()), got=unknown
        )


def _value_width(column: pq.ColumnSchema) -> int:
    """Return the most bytes a value takes; of byte strings, the longest path and its length."""
    if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return int(column.length or 0)
    return _WIDTHS.get(column.physical_type, _LONGEST_STRING)


def _prove_chunk(data: pa.Buffer, chunk: pq.ColumnChunkMetaData, width: int, where: str) -> None:
    """Check the headers and checksums of a column chunk's pages, which fill it exactly."""
    view = memoryview(data).cast("B")
    start = values = plain = pages = 0
    while start < len(view):
        try:
            header = parse_header(view[start : start + MAX_HEADER_BYTES])
        except ValueError as error:
            raise PoolCorruptError(f"page header is damaged: {error}", where=where, hint=_RESTORE) from None
        stop = start + header.length + header.stored
        problem = _page_problem(header, chunk, width, first=start == 0)
        if problem or not start < stop <= len(view):
            raise PoolCorruptError(problem or "page reaches beyond its chunk", where=where, hint=_RESTORE)
        if isal_zlib.crc32(view[start + header.length : stop]) != header.crc:
            raise PoolCorruptError("page checksum does not match", where=where, hint=_RESTORE)
        values += header.values if header.kind == DATA_PAGE else 0
        pages += header.kind == DATA_PAGE
        plain += header.length + header.plain
        start = stop
    for name, expected, got in (
        ("values", chunk.num_values, values),
        ("bytes", chunk.total_uncompressed_size, plain),
        ("data pages", 1 if chunk.num_values else pages, pages),
    ):
        if expected != got:
            raise PoolCorruptError(
                f"column chunk has another number of {name}", where=where, expected=expected, got=got
            )


def _page_problem(
    header: PageHeader, chunk: pq.ColumnChunkMetaData, width: int, *, first: bool
) -> str | None:
    """Return what a page header says that its column chunk does not allow."""
    dictionary = header.kind == DICTIONARY_PAGE
    bounded = 0 <= header.plain <= MAX_PAGE_BYTES and 0 <= header.values <= chunk.num_values
    if chunk.compression != "UNCOMPRESSED":
        bounded = bounded and header.plain <= (width + _SPARE_PER_VALUE) * header.values + _SPARE
    rules = (
        (
            header.kind in (DATA_PAGE, DICTIONARY_PAGE)
            and dictionary == (first and chunk.has_dictionary_page),
            "page is of another kind than the footer says",
        ),
        (header.crc is not None, "page has no checksum"),
        (
            ENCODINGS.get(header.encoding) in chunk.encodings,
            "page has an encoding that the footer does not list",
        ),
        (header.levels in (None, (RLE, RLE)), "page has another encoding of levels than RLE"),
        (bounded and header.stored >= 0, "page claims more than its chunk can hold"),
        (
            chunk.compression != "UNCOMPRESSED" or header.plain == header.stored,
            "page has another decompressed size",
        ),
    )
    return next((problem for kept, problem in rules if not kept), None)
