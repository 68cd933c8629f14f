"""Reading one shard: batches out of a views file and a labels file, by row position."""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from lpld_labels.cache import BlockCache
from lpld_labels.codecs import Codec, Payload
from lpld_labels.errors import PoolCorruptError
from lpld_labels.pages import PageMap
from lpld_labels.parquet_rows import OpenFiles, ParquetRows, RowGroups
from lpld_labels.schema import VIEW_SCHEMA
from lpld_labels.shard import label_schema
from lpld_labels.views import DecodedViews


class ShardCaches:
    """Decoded row groups, shared by all shards of a pool so that one limit holds for all."""

    def __init__(self, *, view_bytes: int | None, label_bytes: int | None) -> None:
        self.views: BlockCache[DecodedViews] = BlockCache(view_bytes, lambda block: block.nbytes)
        self.labels: BlockCache[dict[str, pa.Array]] = BlockCache(
            label_bytes, lambda block: sum(array.nbytes for array in block.values())
        )


class ShardReader:
    """Batches of one shard by position.

    It is light, a few bytes for every row group, and opens its files only when something is read: a pool
    keeps the readers of all its shards, but few files.
    """

    def __init__(
        self, files: OpenFiles, views: str, labels: str, *, codec: Codec, classes: int, caches: ShardCaches
    ) -> None:
        self.views, self.labels = views, labels
        self._files = files
        self._schema = label_schema(codec, classes)
        self._by_view = codec.granularity == "view"
        self._classes = classes
        self._caches = caches
        self._payload = codec.payload_columns(classes)

    @property
    def view_file(self) -> ParquetRows:
        """The views, opened if they are not."""
        return self._files.parquet(self.views, VIEW_SCHEMA)

    @property
    def label_file(self) -> ParquetRows:
        """The labels, opened if they are not."""
        return self._files.parquet(self.labels, self._schema)

    @cached_property
    def view_groups(self) -> RowGroups:
        """Where the rows of the views are."""
        return self.view_file.groups

    @property
    def label_groups(self) -> RowGroups:
        """Where the rows of the labels are."""
        return self._label_places[0]

    @cached_property
    def _label_places(self) -> tuple[RowGroups, PageMap | None]:
        """Where rows and pages of the labels are. With a map of its pages, the file need not stay open."""
        mapped = PageMap.serves(self._payload)
        file = self._files.parquet(self.labels, self._schema, keep=not mapped)
        return file.groups, PageMap(file.metadata, self._payload) if mapped else None

    def view_block(self, group: int) -> DecodedViews:
        """Return the decoded views of one row group."""
        return self._caches.views.get((self.views, group), lambda: DecodedViews(self.view_file.read(group)))

    def label_block(self, group: int) -> dict[str, pa.Array]:
        """Return the payload columns of one row group."""
        return self._caches.labels.get((self.labels, group), lambda: self._read_labels(group))

    def view_slice(self, row: int, rows: int) -> tuple[DecodedViews, slice]:
        """Return the block that holds a batch's views and where in it they are."""
        group, start = self.view_groups.find(row, rows)
        return self.view_block(group), slice(start, start + rows)

    def payload(self, view_row: int, position: int, rows: int) -> Payload:
        """Return one batch's payload columns."""
        row, count = (view_row, rows) if self._by_view else (position, 1)
        group, start = self.label_groups.find(row, count)
        return {name: array.slice(start, count) for name, array in self.label_block(group).items()}

    def _read_labels(self, group: int) -> dict[str, pa.Array]:
        found = self._read_pages(group)
        if found is None:
            names = [column.name for column in self._payload]
            table = self.label_file.read(group, names)
            found = {name: _whole(table[name]) for name in names}
        return found

    def _read_pages(self, group: int) -> dict[str, pa.Array] | None:
        """Return the payload columns by the short way; None where it cannot be gone."""
        pages = self._label_places[1]
        # Blocks that stay in memory must not be views of a file: there may be more files than can be open.
        if pages is None or self._caches.labels.limit is None:
            return None
        try:
            found = pages.read(self._files.plain(self.labels), group, where=self.labels)
        except (pa.ArrowException, OSError) as error:
            raise PoolCorruptError(
                f"row group {group} is damaged: {error}", where=self.labels, hint="restore this file"
            ) from None
        if found is None:
            return None
        for column in self._payload:
            if pa.types.is_list(column.type):
                values = found[column.name]
                if len(values) % self._classes:
                    return None
                found[column.name] = pa.FixedSizeListArray.from_arrays(values, self._classes)
        return found


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; combine_chunks() would copy even a single chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
