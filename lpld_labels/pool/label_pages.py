"""Payloads of a shard's batches, from the pages that the index names."""

from __future__ import annotations

from functools import partial

from lpld_labels.codecs import Codec, Payload
from lpld_labels.format.arrow import Array
from lpld_labels.format.schema import Column
from lpld_labels.io.byte_access import ByteSource, as_distant, once_more
from lpld_labels.io.payload_pages import parse_payload
from lpld_labels.pool.block_cache import BlockCache
from lpld_labels.pool.index import Group

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
        file: ByteSource,
        codec: Codec,
        classes: int,
        *,
        blocks: Blocks,
        columns: tuple[Column, ...] | None = None,
    ) -> None:
        self.where = file.where
        self._file = file
        self._distant = as_distant(file)
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
        if self._distant is None:
            return self._parsed(group)
        forget = partial(self._distant.forget, group.offset, group.offset + group.bytes)
        return once_more(lambda: self._parsed(group), forget)

    def _parsed(self, group: Group) -> dict[str, Array]:
        pages = self._file.read(group.offset, group.bytes)
        rows = group.rows if self._by_view else group.batches
        return parse_payload(pages, self._columns, rows=rows, classes=self._classes, where=self.where)
