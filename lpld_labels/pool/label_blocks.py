"""Labels files of a pool elsewhere, as they are fetched: in ranges of whole row groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa

from lpld_labels.codecs import Codec
from lpld_labels.format.manifest import Manifest
from lpld_labels.pool.index import BatchIndex
from lpld_labels.pool.payload_pages import parse_payload
from lpld_labels.stores.cached_ranges import CutFile
from lpld_labels.stores.ranges import Range


class LabelBlocks:
    """Which bytes of which labels file hold what."""

    def __init__(self, manifest: Manifest, index: BatchIndex, codec: Codec) -> None:
        self._entries = manifest.files_of("labels")
        self._index = index
        self._by_view = codec.granularity == "view"
        self._columns = codec.payload_columns(manifest.header.classes)
        self._classes = manifest.header.classes

    def files(self) -> dict[str, CutFile]:
        """Return the labels files by path, cut where row groups begin."""
        files = {}
        for shard, entry in enumerate(self._entries):
            groups = self._index.groups_of(shard)
            starts = np.array([group.offset for group in groups], np.int64)
            stop = groups[-1].offset + groups[-1].bytes if groups else 0
            files[entry.path] = CutFile(digest=entry.digest, starts=starts, stop=stop)
        return files

    def ranges(self, numbers: Iterable[int]) -> Iterator[Range]:
        """Yield where the row groups of batches are."""
        for number in numbers:
            group = self._index.group(number)
            path = self._entries[int(self._index.shard[number])].path
            yield Range(path, group.offset, group.offset + group.bytes)

    def check(self, block: Range, data: bytes) -> None:
        """Refuse a part of a labels file unless all pages in it are whole (PoolCorruptError)."""
        buffer = pa.py_buffer(data)
        for group in self._index.groups_of(self._shards[block.path]):
            if block.start <= group.offset < block.stop:
                parse_payload(
                    buffer.slice(group.offset - block.start, group.bytes),
                    self._columns,
                    rows=group.rows if self._by_view else group.batches,
                    classes=self._classes,
                    where=block.path,
                )

    @cached_property
    def _shards(self) -> dict[str, int]:
        return {entry.path: shard for shard, entry in enumerate(self._entries)}
