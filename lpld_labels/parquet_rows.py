"""Parquet files whose row groups hold whole batches, and how many of them are open at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from lpld_labels.cache import BlockCache
from lpld_labels.errors import PoolCorruptError


class RowGroups:
    """Where the rows of a file are. starts: int64 [G + 1], the first row of each group, then the end."""

    def __init__(self, metadata: pq.FileMetaData, *, where: str) -> None:
        self.where = where
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self.starts = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def find(self, row: int, rows: int) -> tuple[int, int]:
        """Return the row group that holds rows [row, row + rows) and where in it they start."""
        group = int(np.searchsorted(self.starts, row, side="right")) - 1
        if row < 0 or group >= len(self) or row + rows > self.starts[group + 1]:
            raise PoolCorruptError(
                "batch index points outside the file",
                where=self.where,
                expected=f"rows below {int(self.starts[-1])} within one row group",
                got=f"rows {row} to {row + rows}",
            )
        return group, row - int(self.starts[group])


class ParquetRows:
    """An open Parquet file; every read checks page checksums."""

    def __init__(self, system: fs.FileSystem, where: str, schema: pa.Schema | None = None) -> None:
        self.where = where
        try:
            self._parquet = pq.ParquetFile(
                open_file(system, where), page_checksum_verification=True, pre_buffer=False
            )
        except (pa.ArrowException, OSError) as error:
            raise PoolCorruptError(f"not a readable Parquet file: {error}", where=where) from None
        found = self._parquet.schema_arrow
        if schema is not None and not found.equals(schema):
            raise PoolCorruptError(
                "columns differ from the format", where=where, expected=schema.names, got=found.names
            )
        self.metadata = self._parquet.metadata
        self.groups = RowGroups(self.metadata, where=where)

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a row group, or some of its columns; other columns' bytes are not touched."""
        try:
            return self._parquet.read_row_group(group, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise PoolCorruptError(
                f"row group {group} is damaged: {error}", where=self.where, hint="restore this file"
            ) from None

    def read_all(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the whole file, or some columns of it."""
        try:
            return self._parquet.read(columns=columns, use_threads=True)
        except (pa.ArrowException, OSError) as error:
            raise PoolCorruptError(f"file is damaged: {error}", where=self.where) from None


class OpenFiles:
    """Files of one pool, opened when they are asked for; the least recently used are let go.

    limit: how many Parquet files, and how many others, are open at a time.
    """

    def __init__(self, system: fs.FileSystem, *, limit: int) -> None:
        self._limit = limit
        self.renew(system)

    def renew(self, system: fs.FileSystem) -> None:
        """Let go of all files, and open others through this file system from now on."""
        self._system = system
        self._parquet: BlockCache[ParquetRows] = BlockCache(self._limit, lambda file: 1)
        self._plain: BlockCache[pa.NativeFile] = BlockCache(self._limit, lambda file: 1)

    def parquet(self, where: str, schema: pa.Schema | None = None, *, keep: bool = True) -> ParquetRows:
        """Return an open Parquet file. keep: False for one that will not be asked for again."""
        if not keep:
            return ParquetRows(self._system, where, schema)
        return self._parquet.get(where, lambda: ParquetRows(self._system, where, schema))

    def plain(self, where: str) -> pa.NativeFile:
        """Return a file open for random access to its bytes."""
        return self._plain.get(where, lambda: open_file(self._system, where))

    def close(self) -> None:
        """Let go of all files."""
        self._parquet.clear()
        self._plain.clear()


def open_file(system: fs.FileSystem, path: str) -> pa.NativeFile:
    """Open a file for random access; a missing one is a corrupt pool."""
    try:
        if isinstance(system, fs.LocalFileSystem):
            return pa.memory_map(path)
        return system.open_input_file(path)
    except FileNotFoundError:
        raise PoolCorruptError("file is missing", where=path, hint="restore it or rebuild the pool") from None
    except OSError as error:
        raise PoolCorruptError(f"cannot open: {error}", where=path) from None
