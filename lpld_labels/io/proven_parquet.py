"""Parquet files whose footer and pages are proven before Arrow sees them.

Arrow trusts a footer: a flipped bit in one can end the whole process. So the footer's bytes are compared
with the manifest's digest first, what it says is held against the file and the format (footers.py), and every
page is checked (header, CRC, sizes) before its row group is decoded. Arrow is given what was checked.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.files import FileEntry
from lpld_labels.format.limits import MAX_GROUP_ROWS, MAX_ROWS
from lpld_labels.io.byte_access import ByteSource, as_distant, once_more
from lpld_labels.io.footers import Footer, arrow_metadata, parse_footer
from lpld_labels.io.proven_pages import check_chunk, prove_chunk

_RESTORE = "restore this file"
Numbers = npt.NDArray[np.int64]


class ProvenParquet:
    """One Parquet file of a pool. Opening proves its footer; reading proves the pages it decodes.

    entry: what the manifest says of it. schema: the columns it must have.
    plain: columns whose values must lie in the file as they are, neither encoded nor compressed; what is
        inside another is named `image.bytes`.
    """

    def __init__(
        self, file: ByteSource, entry: FileEntry, schema: pa.Schema, *, plain: Sequence[str] = ()
    ) -> None:
        self.where = file.where
        self._file = file
        self._distant = as_distant(file)
        self._schema = schema
        self._size = entry.bytes - (entry.footer_bytes or 0)
        self._plain = frozenset(plain)
        self._proven = _ProvenBytes(entry.bytes)
        self._lock = threading.Lock()
        self.footer = _proven_footer(file, entry, schema)
        self._check_rows(entry)

    def _check_rows(self, entry: FileEntry) -> None:
        counts = np.diff(self.starts)
        if self.footer.rows != entry.rows or int(self.starts[-1]) != entry.rows:
            raise PoolCorruptError(
                "row groups do not add up", where=self.where, expected=entry.rows, got=int(self.starts[-1])
            )
        if len(counts) and counts.max() > MAX_GROUP_ROWS:
            raise PoolCorruptError(
                "a row group is too large",
                where=self.where,
                expected=f"at most {MAX_GROUP_ROWS} rows",
                got=int(counts.max()),
            )

        places = sorted((chunk.start, chunk.start + chunk.bytes) for chunk in self.footer.chunks())
        if any(end > start for (_, end), (start, _) in pairwise(places)):
            # A page that is many columns at once would make a large table of a small file.
            raise PoolCorruptError("column chunks overlap", where=self.where, hint=_RESTORE)

    @cached_property
    def starts(self) -> Numbers:
        """First row of each row group, and the number of all rows: int64 [groups + 1]."""
        return np.cumsum([0, *(min(g.rows, MAX_ROWS) for g in self.footer.groups)], dtype=np.int64)

    @cached_property
    def _parquet(self) -> pq.ParquetFile:
        metadata = arrow_metadata(self.footer, self._schema)
        return pq.ParquetFile(pa.PythonFile(self._proven, "r"), metadata=metadata, pre_buffer=False)

    def group_of(self, row: int, rows: int) -> tuple[int, int]:
        """Return the row group that holds rows [row, row + rows) and where in it they start."""
        group = int(self.groups_of(np.array([row]), np.array([rows]))[0])
        return group, row - int(self.starts[group])

    def groups_of(self, first: Numbers, rows: npt.NDArray[np.integer[Any]]) -> Numbers:
        """Return the row groups that hold rows [first, first + rows), for many such spans: int64 [n]."""
        groups = np.searchsorted(self.starts, first, side="right") - 1
        inside = (first >= 0) & (groups + 1 < len(self.starts))
        inside[inside] = (first + rows)[inside] <= self.starts[groups[inside] + 1]
        if not inside.all():
            wrong = int(np.argmin(inside))
            raise PoolCorruptError(
                "batch index points outside the file",
                where=self.where,
                expected=f"rows below {int(self.starts[-1])} within one row group",
                got=f"rows {int(first[wrong])} to {int(first[wrong] + rows[wrong])}",
            )
        return groups

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a row group, or some of its columns; other columns' bytes are not touched."""
        if self.starts[group] == self.starts[group + 1]:
            # It has no pages: nothing to prove, and nothing for Arrow to stumble over.
            return self._empty(columns)
        with self._lock:
            self._proven.chunks = self._fetched_chunks(group, columns)
            try:
                table = self._parquet.read_row_group(
                    group, columns=None if columns is None else list(columns), use_threads=False
                )
            except (pa.ArrowException, OSError) as error:
                raise PoolCorruptError(
                    f"row group {group} is damaged: {error}", where=self.where, hint=_RESTORE
                ) from None
            finally:
                self._proven.chunks = {}
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
        groups = [self.read(group, columns) for group in range(len(self.footer.groups))]
        return pa.concat_tables(groups) if groups else self._empty(columns)

    def _empty(self, columns: Sequence[str] | None) -> pa.Table:
        table = self._schema.empty_table()
        return table if columns is None else table.select(list(columns))

    def decompressed_bytes(self) -> int:
        """Return how large all columns are once decompressed; each page is held to it when it is read."""
        return sum(chunk.plain_bytes for chunk in self.footer.chunks())

    def _fetched_chunks(self, group: int, columns: Sequence[str] | None) -> dict[int, pa.Buffer]:
        """Return the bytes of column chunks; those of a file elsewhere by one request."""
        if self._distant is None:
            return self._proven_chunks(group, columns)
        distant, chunks = self._distant, self.footer.groups[group].chunks
        wanted = [chunk for chunk in chunks if columns is None or chunk.leaf.name in columns]
        start = min(chunk.start for chunk in wanted)
        stop = max(chunk.start + chunk.bytes for chunk in wanted)

        def held() -> dict[int, pa.Buffer]:
            distant.hold(start, min(stop, self._size))
            return self._proven_chunks(group, columns)

        return once_more(held, partial(distant.forget, start, stop))

    def _proven_chunks(self, group: int, columns: Sequence[str] | None) -> dict[int, pa.Buffer]:
        """Return the bytes of column chunks by their place, every page of them checked."""
        proven: dict[int, pa.Buffer] = {}
        for chunk in self.footer.groups[group].chunks:
            if columns is not None and chunk.leaf.name not in columns:
                continue
            place = f"{self.where}, row group {group}, column {chunk.leaf.name}"
            plain = chunk.leaf.path in self._plain
            rows = self.footer.groups[group].rows
            check_chunk(chunk, rows=rows, size=self._size, plain=plain, where=place)
            data = self._file.read(chunk.start, chunk.bytes)
            prove_chunk(data, chunk, plain=plain, where=place)
            proven[chunk.start] = data
        return proven


class _ProvenBytes(io.RawIOBase):
    """The file as Arrow sees it: only column chunks that were proven are there."""

    def __init__(self, size: int) -> None:
        self.chunks: dict[int, pa.Buffer] = {}
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> memoryview:
        chunk = self.chunks.get(self._at)
        if chunk is None or not 0 <= size <= chunk.size:
            raise OSError(f"bytes {self._at} to {self._at + size} are not those of a column")
        self._at += size
        return memoryview(chunk)[:size]


def _proven_footer(file: ByteSource, entry: FileEntry, schema: pa.Schema) -> Footer:
    """Return what the footer says, once its bytes are known to be those the manifest names."""
    where = file.where
    if entry.footer_bytes is None or entry.bytes > file.size:
        raise PoolCorruptError("file is shorter than its footer", where=where, hint=_RESTORE)
    footer = file.read(entry.bytes - entry.footer_bytes, entry.footer_bytes).to_pybytes()
    if bytes_digest(footer) != entry.footer_digest:
        raise PoolCorruptError(
            "file's footer is not the one the manifest names",
            where=where,
            expected=f"SHA-256 {str(entry.footer_digest)[:12]}...",
            got=f"{bytes_digest(footer)[:12]}...",
            hint=_RESTORE,
        )
    try:
        return parse_footer(footer, schema)
    except ValueError as error:
        raise PoolCorruptError(f"footer is not one of the format: {error}", where=where) from None
