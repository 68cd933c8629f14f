"""Labels files: the payload of a batch, straight from the pages that the batch index names.

Each page's header and CRC are checked before a byte of it is used. The file's footer is not read, so a batch
costs the same in a pool of one shard and of a thousand. Values are views of the bytes that were read, except
where one page holds several binary values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from operator import attrgetter, itemgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs import Codec, Payload
from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.arrow import Array
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import Column
from lpld_labels.io.parquet_pages import DATA_PAGE, PLAIN, RLE, check_crc, parse_page
from lpld_labels.io.prefetch import CutFile, Range
from lpld_labels.io.random_access import ByteSource, retry_corrupt
from lpld_labels.pool.block_cache import BlockCache
from lpld_labels.pool.index import BatchIndex, Group

Blocks = BlockCache[tuple[int, dict[str, Array]]]
"""Bytes and payload columns of row groups, shared by all shards of a pool so that one limit holds for all."""
_LENGTH = 4
"""Bytes of the length before a binary value and before a run of levels."""


def payload_blocks(limit: int) -> Blocks:
    """Return an empty cache of row groups; limit: bytes."""
    return BlockCache(limit, itemgetter(0))


class LabelPages:
    """The labels file of a shard.

    columns: the codec's payload columns, if the caller has them.
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
        return self._blocks.get((self.where, group.offset), lambda: (group.bytes, self._read(group)))[1]

    def _read(self, group: Group) -> dict[str, Array]:
        if self._file.forget is None:
            return self._parsed(group)
        forget = partial(self._file.forget, group.offset, group.offset + group.bytes)
        return retry_corrupt(lambda: self._parsed(group), forget)

    def _parsed(self, group: Group) -> dict[str, Array]:
        pages = self._file.read(group.offset, group.bytes)
        rows = group.rows if self._by_view else group.batches
        return parse_payload(pages, self._columns, rows=rows, classes=self._classes, where=self.where)


class LabelBlocks:
    """Places of row groups in the labels files of a pool."""

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
        """Raise PoolCorruptError unless all pages in a part of a labels file are whole."""
        groups = self._groups[block.path]
        first = bisect_left(groups, block.start, key=attrgetter("offset"))
        stop = bisect_left(groups, block.stop, key=attrgetter("offset"))
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
        """Row groups of every labels file, in file order."""
        return {entry.path: self._index.groups_of(shard) for shard, entry in enumerate(self._entries)}


def parse_payload(
    pages: pa.Buffer, columns: Sequence[Column], *, rows: int, classes: int, where: str
) -> dict[str, Array]:
    """Return the payload columns, each an array of `rows` values.

    pages: the payload pages of a row group, one for each column, side by side. classes: length of lists.
    """
    data = memoryview(pages).cast("B")
    arrays: dict[str, Array] = {}
    start = 0
    for column in columns:
        place = f"{where}, column {column.name}"
        page = parse_page(data[start:], place)
        values = rows * classes if pa.types.is_list(column.type) else rows
        expected = (DATA_PAGE, PLAIN, (RLE, RLE), values, page.stored)
        got = (page.kind, page.encoding, page.levels, page.values, page.plain)
        if got != expected:
            raise PoolCorruptError(
                "page has another kind, encoding, size or number of values than its row group",
                where=place,
                expected=f"kind, encoding, levels, values and bytes {expected}",
                got=got,
            )
        start += page.header
        if not 0 <= page.stored <= len(data) - start:
            raise PoolCorruptError("page reaches beyond its place", where=place, got=page.stored)
        check_crc(page, data[start : start + page.stored], place)
        arrays[column.name] = _array(pages.slice(start, page.stored), column, rows, classes, place)
        start += page.stored
    if start != len(data):
        raise PoolCorruptError(
            "payload pages do not fill their place", where=where, expected=len(data), got=start
        )
    return arrays


def _array(body: pa.Buffer, column: Column, rows: int, classes: int, where: str) -> Array:
    kind = column.type
    if pa.types.is_list(kind):
        # Levels of lists that are all full and of one length say nothing; the values are the page's tail.
        size = rows * classes * (kind.value_type.bit_width // 8)
        tail = body.slice(body.size - size) if body.size > size else body
        return pa.FixedSizeListArray.from_arrays(
            _fixed(tail, kind.value_type, rows * classes, where), classes
        )
    if not pa.types.is_binary(kind):
        return _fixed(body, kind, rows, where)
    if not column.nullable:
        return _binary(body, 0, np.ones(rows, np.bool_), where)
    present, start = _definition_levels(memoryview(body).cast("B"), rows, where)
    return _binary(body, start, present, where)


def _fixed(body: pa.Buffer, kind: pa.DataType, count: int, where: str) -> Array:
    """Return values of fixed width over the page's own memory."""
    size = count * (kind.bit_width // 8)
    if body.size != size:
        raise PoolCorruptError("page has the wrong length", where=where, expected=size, got=body.size)
    return pa.Array.from_buffers(kind, count, [None, body])


def _binary(body: pa.Buffer, start: int, present: npt.NDArray[np.bool_], where: str) -> Array:
    """Return binary values, each stored as its length and its bytes, from `start` on."""
    data = memoryview(body).cast("B")
    parts: list[memoryview] = []
    ends = [0]
    for there in present.tolist():
        if there:
            length = int.from_bytes(data[start : start + _LENGTH], "little")
            begin, start = start + _LENGTH, start + _LENGTH + length
            if start > len(data):
                raise PoolCorruptError("binary value reaches beyond its page", where=where)
            parts.append(data[begin:start])
        ends.append(ends[-1] + (len(parts[-1]) if there else 0))
    if start != len(data):
        raise PoolCorruptError("page has bytes left over", where=where, expected=start, got=len(data))
    # Not `pa.array(parts)`: an array made of memoryviews keeps each of them, and its page, for ever.
    nulls = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little").data)
    values = body.slice(start - ends[-1], ends[-1]) if len(parts) == 1 else _joined(parts, ends[-1])
    offsets = pa.py_buffer(np.array(ends, np.int32).data)
    return pa.Array.from_buffers(pa.binary(), len(present), [nulls, offsets, values])


def _joined(parts: Sequence[memoryview], size: int) -> pa.Buffer:
    """Return parts side by side in memory of Arrow's pool, which is warm."""
    values = pa.allocate_buffer(size)
    copy = memoryview(values).cast("B")
    done = 0
    for part in parts:
        copy[done : done + len(part)] = part
        done += len(part)
    return values


def _definition_levels(data: memoryview, rows: int, where: str) -> tuple[npt.NDArray[np.bool_], int]:
    """Return which of a nullable column's values are there, and where the values begin.

    One-bit levels in Parquet's mix of runs (even header: count and value) and packed bits (odd header:
    groups of eight). A header is a varint; as there are at most 2^20 rows, it takes at most three bytes.
    """
    stop = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    present: list[bool] = []
    at = _LENGTH
    try:
        while len(present) < rows:
            header = shift = 0
            more = True
            while more:
                header |= (data[at] & 0x7F) << shift
                more = data[at] >= 0x80 and shift < 21
                shift += 7
                at += 1
            if header < 2:
                break
            if header & 1:
                packed = np.frombuffer(data[at : at + (header >> 1)], np.uint8)
                present += np.unpackbits(packed, bitorder="little").astype(np.bool_).tolist()
                at += header >> 1
            else:
                present += [bool(data[at])] * min(header >> 1, rows - len(present))
                at += 1
    except IndexError:
        at = -1
    if len(present) < rows or at != stop or stop > len(data):
        raise PoolCorruptError("definition levels are damaged", where=where, hint="restore this file")
    return np.array(present[:rows], np.bool_), stop
