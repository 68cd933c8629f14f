"""Read the Parquet files of a pool with Arrow, after comparing their footers with the manifest's digests.

Arrow verifies the checksum of every page that it decodes. Never call `metadata.row_group(i).column(j)` for a
footer that may be damaged: this can crash the process.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.limits import MAX_GROUP_ROWS
from lpld_labels.format.manifest import FileEntry
from lpld_labels.io.parquet_files import footer_metadata
from lpld_labels.io.parquet_pages import Chunk, walk_pages
from lpld_labels.io.random_access import ByteSource, retry_corrupt

T = TypeVar("T")
Numbers = npt.NDArray[np.int64]
_RESTORE = "restore this file"


class VerifiedParquet:
    """One Parquet file of a pool. Opening verifies its footer; reading verifies the pages it decodes.

    schema: required schema. starts: int64 [groups + 1], first row of each row group, then the number of rows.
    """

    def __init__(self, file: ByteSource, entry: FileEntry, schema: pa.Schema) -> None:
        self.where = file.where
        self.schema = schema
        self._file = file
        self._end = entry.bytes - (entry.footer_bytes or 0)
        self._lock = threading.Lock()
        self._parquet = self._retried(lambda: self._opened(entry))
        self.starts: Numbers = self._row_group_starts(entry)

    @property
    def groups(self) -> int:
        return len(self.starts) - 1

    def group_of(self, row: int, rows: int) -> tuple[int, int]:
        """Return the row group that contains rows [row, row + rows), and the offset of `row` in the group."""
        group = int(self.groups_of(np.array([row]), np.array([rows]))[0])
        return group, row - int(self.starts[group])

    def groups_of(self, first: Numbers, rows: npt.NDArray[np.integer[Any]]) -> Numbers:
        """Return int64 [n]: for each of n spans, the row group that contains rows [first, first + rows)."""
        groups = np.searchsorted(self.starts, first, side="right") - 1
        inside = (first >= 0) & (groups + 1 < len(self.starts))
        inside[inside] = (first + rows)[inside] <= self.starts[groups[inside] + 1]
        if not inside.all():
            wrong = int(np.argmin(inside))
            raise PoolCorruptError(
                "batch index does not fit the file",
                where=self.where,
                expected=f"each batch inside one row group, rows below {int(self.starts[-1])}",
                got=f"rows {int(first[wrong])} to {int(first[wrong] + rows[wrong])}",
            )
        return groups

    def read(self, group: int, columns: list[str] | None = None) -> pa.Table:
        """Return a row group. columns: names of the columns to read; None: all."""
        expected = int(self.starts[group + 1] - self.starts[group])
        if expected == 0:
            return self.schema.empty_table().select(columns or self.schema.names)
        table = self._retried(lambda: self._decoded(group, columns))
        if table.num_rows != expected:
            raise PoolCorruptError(
                f"row group {group} has the wrong number of rows",
                where=self.where,
                expected=expected,
                got=table.num_rows,
            )
        return table

    def read_all(self) -> pa.Table:
        return pa.concat_tables([self.schema.empty_table(), *map(self.read, range(self.groups))])

    def chunks(self, *, plain: Sequence[str] = ()) -> list[Chunk]:
        """Check every page without Arrow; return the column chunks. See `walk_pages`."""
        rows = np.diff(self.starts).tolist()
        return list(walk_pages(self._file, self.schema, rows, self._end, plain=plain))

    def _opened(self, entry: FileEntry) -> pq.ParquetFile:
        footer = _verified_footer(self._file, entry)
        try:
            parquet = pq.ParquetFile(
                pa.PythonFile(_Stream(self._file), "r"),
                metadata=footer_metadata(footer),
                page_checksum_verification=True,
                # Fetch a row group of a remote file with one request.
                pre_buffer=self._file.forget is not None,
            )
            found = parquet.schema_arrow
        except (pa.ArrowException, OSError, ValueError) as error:
            problem = f"footer is invalid: {_one_line(error)}"
            raise PoolCorruptError(problem, where=self.where) from None
        if not found.equals(self.schema):
            raise PoolCorruptError(
                "columns differ from the pool format",
                where=self.where,
                expected=self.schema.names,
                got=[name[:40] for name in found.names[:40]],
            )
        return parquet

    def _row_group_starts(self, entry: FileEntry) -> Numbers:
        metadata = self._parquet.metadata
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        if sum(counts) != entry.rows or metadata.num_rows != entry.rows or min(counts, default=0) < 0:
            raise PoolCorruptError(
                "row count differs from the manifest", where=self.where, expected=entry.rows, got=sum(counts)
            )
        if max(counts, default=0) > MAX_GROUP_ROWS:
            raise PoolCorruptError(
                "a row group is too large",
                where=self.where,
                expected=f"at most {MAX_GROUP_ROWS} rows",
                got=max(counts),
            )
        return np.cumsum([0, *counts], dtype=np.int64)

    def _decoded(self, group: int, columns: list[str] | None) -> pa.Table:
        with self._lock:
            try:
                return self._parquet.read_row_group(group, columns=columns, use_threads=False)
            except (pa.ArrowException, OSError) as error:
                problem = f"row group {group} is damaged: {_one_line(error)}"
                raise PoolCorruptError(problem, where=self.where, hint=_RESTORE) from None

    def _retried(self, read: Callable[[], T]) -> T:
        return read() if self._file.forget is None else retry_corrupt(read)


class _Stream(io.RawIOBase):
    """A file wrapped as a Python stream, for Arrow."""

    def __init__(self, file: ByteSource) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> memoryview:
        data = self._file.read(self._at, size)
        self._at += size
        return memoryview(data)


def _verified_footer(file: ByteSource, entry: FileEntry) -> bytes:
    if entry.footer_bytes is None or entry.bytes > file.size:
        raise PoolCorruptError("file is shorter than the manifest says", where=file.where, hint=_RESTORE)
    footer = file.read(entry.bytes - entry.footer_bytes, entry.footer_bytes).to_pybytes()
    if bytes_digest(footer) != entry.footer_digest:
        raise PoolCorruptError(
            "footer does not match its digest in the manifest",
            where=file.where,
            expected=f"SHA-256 {str(entry.footer_digest)[:12]}...",
            got=f"{bytes_digest(footer)[:12]}...",
            hint=_RESTORE,
        )
    return footer


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
