"""Read payloads from labels files, directly from the pages at the offsets in the batch index.

The header and CRC of a page are checked before its values are used. File footers are not read, so the time to
read a batch does not depend on the number of shards. Values are zero-copy views of the bytes read, unless a
page holds several binary values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from lpld_labels.pool.block_cache import BlockCache, OpenFiles
from lpld_labels.pool.index import BatchIndex, Group

_LENGTH = 4  # Bytes of the length prefix of a binary value or of a run of levels.


class LabelLayout:
    """The byte ranges of the row groups in a pool's labels files, and the columns in each group."""

    def __init__(self, manifest: Manifest, index: BatchIndex, codec: Codec) -> None:
        self._entries = manifest.files_of("labels")
        self.index = index
        self.by_view = codec.granularity == "view"
        self._columns = codec.payload_columns(manifest.header.classes)
        self._classes = manifest.header.classes

    def files(self) -> dict[str, CutFile]:
        """Map the path of each labels file to a `CutFile` whose parts are the row groups."""
        files = {}
        for entry in self._entries:
            groups = self._groups[entry.path]
            starts = np.array([group.offset for group in groups], np.int64)
            stop = groups[-1].offset + groups[-1].bytes if groups else 0
            files[entry.path] = CutFile(digest=entry.digest, starts=starts, stop=stop)
        return files

    def ranges(self, numbers: Iterable[int]) -> Iterator[Range]:
        for number in numbers:
            group = self.index.group(number)
            path = self._entries[int(self.index.shard[number])].path
            yield Range(path, group.offset, group.offset + group.bytes)

    def check(self, block: Range, data: pa.Buffer) -> None:
        groups = self._groups[block.path]
        first = bisect_left(groups, block.start, key=attrgetter("offset"))
        stop = bisect_left(groups, block.stop, key=attrgetter("offset"))
        for group in groups[first:stop]:
            self.parse(data.slice(group.offset - block.start, group.bytes), group, block.path)

    def parse(self, pages: pa.Buffer, group: Group, where: str) -> dict[str, Array]:
        rows = group.rows if self.by_view else group.batches
        return _parse_payload(pages, self._columns, rows=rows, classes=self._classes, where=where)

    @cached_property
    def _groups(self) -> dict[str, Sequence[Group]]:
        return {entry.path: self.index.groups_of(shard) for shard, entry in enumerate(self._entries)}


class LabelFiles:
    """Reads a pool's labels files. cache_bytes: memory for row groups. open_files: limit on open files."""

    def __init__(
        self,
        layout: LabelLayout,
        open_file: Callable[[int], ByteSource],
        *,
        cache_bytes: int,
        open_files: int,
    ) -> None:
        self._layout = layout
        self._open_file = open_file
        self._files: OpenFiles[ByteSource] = OpenFiles(open_files)
        self._blocks: BlockCache[tuple[int, dict[str, Array]]] = BlockCache(cache_bytes, itemgetter(0))

    def payload(self, number: int) -> Payload:
        index = self._layout.index
        group = index.group(number)
        if self._layout.by_view:
            start, count = int(index.first_rows[number]) - group.first_row, int(index.rows[number])
        else:
            start, count = int(index.positions[number]) - group.first_position, 1
        block = self.block(int(index.shard[number]), group)
        return {name: array.slice(start, count) for name, array in block.items()}

    def block(self, shard: int, group: Group) -> dict[str, Array]:
        return self._blocks.get((shard, group.offset), lambda: (group.bytes, self._read(shard, group)))[1]

    def clear(self) -> None:
        self._files.clear()
        self._blocks.clear()

    def _read(self, shard: int, group: Group) -> dict[str, Array]:
        file = self._files.get(shard, lambda: self._open_file(shard))

        def parsed() -> dict[str, Array]:
            pages = file.read(group.offset, group.bytes)
            return self._layout.parse(pages, group, file.where)

        if file.forget is None:
            return parsed()
        return retry_corrupt(parsed, partial(file.forget, group.offset, group.offset + group.bytes))


def _parse_payload(
    pages: pa.Buffer, columns: Sequence[Column], *, rows: int, classes: int, where: str
) -> dict[str, Array]:
    """Return an array of `rows` values per column. pages: one page per column. classes: list length."""
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
                "page disagrees with its row group in kind, encoding, levels, number of values or size",
                where=place,
                expected=f"kind, encoding, levels, values and bytes {expected}",
                got=got,
            )
        start += page.header
        if not 0 <= page.stored <= len(data) - start:
            raise PoolCorruptError("page extends beyond its row group", where=place, got=page.stored)
        check_crc(page, data[start : start + page.stored], place)
        arrays[column.name] = _array(pages.slice(start, page.stored), column, rows, classes, place)
        start += page.stored
    if start != len(data):
        raise PoolCorruptError(
            "payload pages do not fill their row group", where=where, expected=len(data), got=start
        )
    return arrays


def _array(body: pa.Buffer, column: Column, rows: int, classes: int, where: str) -> Array:
    kind = column.type
    if pa.types.is_list(kind):
        # All lists are complete and of equal length, so the levels can be skipped.
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
    size = count * (kind.bit_width // 8)
    if body.size != size:
        raise PoolCorruptError("page has the wrong length", where=where, expected=size, got=body.size)
    return pa.Array.from_buffers(kind, count, [None, body])


def _binary(body: pa.Buffer, start: int, present: npt.NDArray[np.bool_], where: str) -> Array:
    """Return an array of binary values. body: from `start` on, the length and the bytes of each value."""
    data = memoryview(body).cast("B")
    parts: list[memoryview] = []
    ends = [0]
    for there in present.tolist():
        if there:
            length = int.from_bytes(data[start : start + _LENGTH], "little")
            begin, start = start + _LENGTH, start + _LENGTH + length
            if start > len(data):
                raise PoolCorruptError("binary value extends beyond its page", where=where)
            parts.append(data[begin:start])
        ends.append(ends[-1] + (len(parts[-1]) if there else 0))
    if start != len(data):
        raise PoolCorruptError("page has bytes after its values", where=where, expected=start, got=len(data))
    # `pa.array(parts)` would leak the memoryviews and their page.
    nulls = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little").data)
    values = body.slice(start - ends[-1], ends[-1]) if len(parts) == 1 else _joined(parts, ends[-1])
    offsets = pa.py_buffer(np.array(ends, np.int32).data)
    return pa.Array.from_buffers(pa.binary(), len(present), [nulls, offsets, values])


def _joined(parts: Sequence[memoryview], size: int) -> pa.Buffer:
    """Concatenate parts in memory from Arrow's allocator, which reuses pages."""
    values = pa.allocate_buffer(size)
    copy = memoryview(values).cast("B")
    done = 0
    for part in parts:
        copy[done : done + len(part)] = part
        done += len(part)
    return values


def _definition_levels(data: memoryview, rows: int, where: str) -> tuple[npt.NDArray[np.bool_], int]:
    """Return which values of a nullable column are present, and the offset of the first value.

    Parquet stores levels of one bit as runs of equal levels (even header) or in packed groups of eight (odd
    header). A header is a varint of at most three bytes, because there are at most 2^20 rows.
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
