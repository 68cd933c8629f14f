"""Labels files of a pool elsewhere, as they are fetched: in ranges of whole row groups."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from lpld_labels.codecs import Codec
from lpld_labels.format.manifest import Manifest
from lpld_labels.io.cached_ranges import CutFile
from lpld_labels.io.payload_pages import parse_payload
from lpld_labels.io.ranges import Range
from lpld_labels.pool.index import BatchIndex, Group


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
        for entry in self._entries:
            groups = self._groups[entry.path]
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

    def check(self, block: Range, data: pa.Buffer) -> None:
        """Refuse a part of a labels file unless all pages in it are whole (PoolCorruptError)."""
        groups = self._groups[block.path]
        first = bisect_left(groups, block.start, key=_offset)
        stop = bisect_left(groups, block.stop, key=_offset)
        for group in groups[first:stop]:
            parse_payload(
                data.slice(group.offset - block.start, group.bytes),
                self._columns,
                rows=group.rows if self._by_view else group.batches,
                classes=self._classes,
                where=block.path,
            )

    @cached_property
    def _groups(self) -> dict[str, Sequence[Group]]:
        """Row groups of every labels file, in the order in which they lie there."""
        return {entry.path: self._index.groups_of(shard) for shard, entry in enumerate(self._entries)}


def _offset(group: Group) -> int:
    return group.offset
