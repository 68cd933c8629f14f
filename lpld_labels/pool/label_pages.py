"""Payloads of a shard's batches, from the pages that the index names."""

from __future__ import annotations

import pyarrow as pa

from lpld_labels.codecs import Codec, Payload
from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.arrow import Array
from lpld_labels.format.schema import Column
from lpld_labels.pool.block_cache import BlockCache
from lpld_labels.pool.index import Group
from lpld_labels.pool.payload_pages import parse_payload

Blocks = BlockCache[dict[str, Array]]
"""Payload columns of row groups, shared by all shards of a pool so that one limit holds for all."""


def payload_blocks(limit: int | None) -> Blocks:
    """Return an empty cache of row groups; limit: bytes, None for no limit."""
    return BlockCache(limit, lambda block: sum(array.nbytes for array in block.values()))


class LabelPages:
    """The labels file of a shard: payload pages where the index says they are.

    columns: the codec's payload columns, from those who open many files.
    """

    def __init__(
        self,
        file: pa.NativeFile,
        codec: Codec,
        classes: int,
        *,
        where: str,
        blocks: Blocks,
        columns: tuple[Column, ...] | None = None,
    ) -> None:
        self.where = where
        self._file = file
        self._classes = classes
        self._columns = columns or codec.payload_columns(classes)
        self._by_view = codec.granularity == "view"
        self._blocks = blocks

    def payload(self, group: Group, position: int, first_row: int, rows: int) -> Payload:
        """Return one batch's payload columns."""
        block = self.block(group)
        start = first_row - group.first_row if self._by_view else position - group.first_position
        count = rows if self._by_view else 1
        return {name: array.slice(start, count) for name, array in block.items()}

    def block(self, group: Group) -> dict[str, Array]:
        """Return the payload columns of a whole row group."""
        return self._blocks.get((self.where, group.offset), lambda: self._read(group))

    def _read(self, group: Group) -> dict[str, Array]:
        try:
            self._file.seek(group.offset)
            pages = self._file.read_buffer(group.bytes)
        except OSError as error:
            raise PoolCorruptError(f"cannot be read: {error}", where=self.where) from None
        if pages.size != group.bytes:
            raise PoolCorruptError("file ends early", where=self.where, expected=group.bytes, got=pages.size)
        rows = group.rows if self._by_view else group.batches
        return parse_payload(pages, self._columns, rows=rows, classes=self._classes, where=self.where)
