"""Reading one shard: batches out of a views file and a labels file, by row position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from lpld_labels.codecs import Codec, Payload
from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.schema import VIEW_SCHEMA
from lpld_labels.format.views import DecodedViews
from lpld_labels.pool.block_cache import BlockCache
from lpld_labels.pool.pages import PlainPage, find_plain_page
from lpld_labels.pool.shard import label_schema


class ParquetRows:
    """A Parquet file whose row groups hold whole batches; every read checks page checksums."""

    def __init__(self, system: fs.FileSystem, where: str, schema: pa.Schema | None = None) -> None:
        self.where = where
        self._file = open_file(system, where)
        try:
            self._parquet = pq.ParquetFile(self._file, page_checksum_verification=True, pre_buffer=False)
            found = self._parquet.schema_arrow
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise PoolCorruptError(f"not a readable Parquet file: {error}", where=where) from None
        if schema is not None and not found.equals(schema):
            raise PoolCorruptError(
                "columns differ from the format", where=where, expected=schema.names, got=found.names
            )
        self._column_places = {name: place for place, name in enumerate(found.names)}
        # Finding a page means parsing its header in Python, which takes as long as checking its bytes.
        self._pages: dict[tuple[int, str], PlainPage | None] = {}
        self.metadata = self._parquet.metadata
        groups = range(self.metadata.num_row_groups)
        counts = [self.metadata.row_group(g).num_rows for g in groups]
        # Rows are found by these counts: with a wrong one, labels would be those of another batch.
        if sum(counts) != self.metadata.num_rows or min(counts, default=0) < 0:
            raise PoolCorruptError(
                "row groups do not add up",
                where=where,
                expected=f"{self.metadata.num_rows} rows",
                got=sum(counts),
                hint="restore this file",
            )
        self.starts = np.cumsum([0, *counts])

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
        try:
            table = self._parquet.read_row_group(group, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise PoolCorruptError(
                f"row group {group} is damaged: {error}", where=self.where, hint="restore this file"
            ) from None
        if table.num_rows != self.rows_of(group):
            raise PoolCorruptError(
                f"row group {group} has the wrong length",
                where=self.where,
                expected=self.rows_of(group),
                got=table.num_rows,
                hint="restore this file",
            )
        return table

    def rows_of(self, group: int) -> int:
        """Return how many rows a group has."""
        return int(self.starts[group + 1] - self.starts[group])

    def list_values(self, group: int, column: str, value_type: pa.DataType) -> pa.Array | None:
        """Return all values of a list column by the short way, or None if it cannot be gone."""
        if (group, column) not in self._pages:
            chunk = self.metadata.row_group(group).column(self._column_places[column])
            width = value_type.bit_width // 8
            self._pages[group, column] = find_plain_page(
                self._file, chunk, count=chunk.num_values, width=width
            )
        page = self._pages[group, column]
        if page is None:
            return None
        values = page.values(self._file, where=self.where)
        return pa.Array.from_buffers(value_type, 8 * values.size // value_type.bit_width, [None, values])

    def read_all(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the whole file, or some columns of it."""
        try:
            return self._parquet.read(columns=columns, use_threads=True)
        except (pa.ArrowException, OSError) as error:
            raise PoolCorruptError(f"file is damaged: {error}", where=self.where) from None


class ShardCaches:
    """Decoded row groups, shared by all shards of a pool so that one limit holds for all."""

    def __init__(self, *, view_bytes: int | None, label_bytes: int | None) -> None:
        self.views: BlockCache[DecodedViews] = BlockCache(view_bytes, lambda block: block.nbytes)
        self.labels: BlockCache[dict[str, pa.Array]] = BlockCache(
            label_bytes, lambda block: sum(array.nbytes for array in block.values())
        )


class ShardReader:
    """Batches of one shard by position."""

    def __init__(
        self,
        system: fs.FileSystem,
        views: str,
        labels: str,
        *,
        codec: Codec,
        classes: int,
        caches: ShardCaches,
    ) -> None:
        self.view_file = ParquetRows(system, views, VIEW_SCHEMA)
        self.label_file = ParquetRows(system, labels, label_schema(codec, classes))
        self._by_view = codec.granularity == "view"
        self._classes = classes
        self._caches = caches
        self._payload = codec.payload_columns(classes)

    def view_block(self, group: int) -> DecodedViews:
        """Return the decoded views of one row group."""
        return self._caches.views.get(
            (self.view_file.where, group), lambda: DecodedViews(self.view_file.read(group))
        )

    def label_block(self, group: int) -> dict[str, pa.Array]:
        """Return the payload columns of one row group."""
        return self._caches.labels.get((self.label_file.where, group), lambda: self._read_labels(group))

    def view_slice(self, row: int, rows: int) -> tuple[DecodedViews, slice]:
        """Return the block that holds a batch's views and where in it they are."""
        group, start = self.view_file.group_of(row, rows)
        return self.view_block(group), slice(start, start + rows)

    def payload(self, view_row: int, position: int, rows: int) -> Payload:
        """Return one batch's payload columns."""
        row, count = (view_row, rows) if self._by_view else (position, 1)
        group, start = self.label_file.group_of(row, count)
        return {name: array.slice(start, count) for name, array in self.label_block(group).items()}

    def _read_labels(self, group: int) -> dict[str, pa.Array]:
        if len(self._payload) == 1 and pa.types.is_list(self._payload[0].type):
            column = self._payload[0]
            values = self.label_file.list_values(group, column.name, column.type.value_type)
            if values is not None and len(values) == self.label_file.rows_of(group) * self._classes:
                return {column.name: pa.FixedSizeListArray.from_arrays(values, self._classes)}
        names = [column.name for column in self._payload]
        table = self.label_file.read(group, names)
        return {name: _whole(table[name]) for name in names}


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; combine_chunks() would copy even a single chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


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
