"""Column chunks: page headers against the footer, mandatory CRCs, bounded sizes, decoded values."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from .decode import DecodeError, delta, hybrid, plain
from .errors import Refused, need, refuse
from .schema import BOOLEAN, BYTES, INT32, INT64, Leaf
from .thrift import Compact, Struct, ThriftError, child, integer, optional_integer

PLAIN, PLAIN_DICTIONARY, RLE, DELTA, RLE_DICTIONARY = 0, 2, 3, 5, 8
ENCODINGS = frozenset((PLAIN, PLAIN_DICTIONARY, RLE, DELTA, RLE_DICTIONARY))
UNCOMPRESSED, ZSTD = 0, 6
MAX_PAGE = 2**30
MAX_HEADER = 2**16
WIDTHS = {BOOLEAN: 1, INT32: 4, INT64: 8, 4: 4, 5: 8}
Read = Callable[[int, int], bytes]


@dataclass(frozen=True)
class Chunk:
    """What the footer says of one column chunk."""

    file: str
    leaf: Leaf
    codec: int
    encodings: frozenset[int]
    values: int
    start: int
    size: int
    dictionary: bool = False
    max_value_bytes: int = MAX_PAGE  # of a byte string; other types have their own
    plain: int | None = None  # bytes with pages decompressed; not known without a footer
    may_be_empty: bool = False  # no data page, as a file without rows may have it

    @property
    def field(self) -> str:
        """Name the column for messages."""
        return f"column {self.leaf.dotted}"


@dataclass(frozen=True)
class Column:
    """Decoded values of a chunk; levels only where the column has them."""

    values: Any
    definition: NDArray[np.uint8] | None
    repetition: NDArray[np.uint8] | None


def _decompress(chunk: Chunk, data: bytes, size: int) -> bytes:
    """Undo the page's compression; the output is bounded by the size, which was checked."""
    if chunk.codec == UNCOMPRESSED or (size == 0 and not data):
        return data
    try:
        claimed = zstandard.frame_content_size(data)
        need(claimed in (-1, size), chunk.file, chunk.field, "zstd frame of another size than the header's")
        decoder = zstandard.ZstdDecompressor(max_window_size=2**27)
        out = decoder.decompress(data, max_output_size=max(size, 1), allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Refused(chunk.file, chunk.field, f"page does not decompress: {error}") from error
    need(len(out) == size, chunk.file, chunk.field, "page decompresses to another size than the header's")
    return out


def _largest(chunk: Chunk, count: int) -> int:
    """Give the most bytes that a page of so many values can take."""
    if chunk.leaf.physical == BYTES:
        width = 4 + chunk.max_value_bytes
    else:
        width = WIDTHS.get(chunk.leaf.physical, chunk.leaf.length)
    return min((width + 16) * count + 1024, MAX_PAGE)


class _Page:
    """One page: its header, checked, and its decompressed bytes, proven by their CRC."""

    def __init__(self, chunk: Chunk, read: Read, position: int) -> None:
        """Read the page at a position of the file."""
        end = chunk.start + chunk.size
        file, field = chunk.file, chunk.field
        raw = read(position, min(MAX_HEADER, end - position))
        cursor = Compact(raw)
        head = cursor.struct()
        self.kind = integer(head, 1, "page type")
        size = integer(head, 2, "uncompressed_page_size")
        stored = integer(head, 3, "compressed_page_size")
        crc = optional_integer(head, 4, "crc")
        if crc is None:
            refuse(file, field, "page without a CRC")
        need(0 <= size <= MAX_PAGE, file, field, f"page of {size} bytes")
        self.end = position + cursor.position + stored
        need(stored >= 0 and self.end <= end, file, field, "page runs past its column chunk")
        need(chunk.codec != UNCOMPRESSED or stored == size, file, field, "uncompressed page of two sizes")
        need(stored <= size + size // 128 + 1024, file, field, "page grew by compression")
        need(self.kind in (0, 2), file, field, f"page of type {self.kind}, not DATA_PAGE or dictionary")
        self.head: Struct = (
            child(head, 5, "data_page_header") if self.kind == 0 else child(head, 7, "dictionary")
        )
        self.count = integer(self.head, 1, "num_values")
        self.encoding = integer(self.head, 2, "encoding")
        good = 0 <= self.count <= chunk.values if self.kind == 2 else self.count == chunk.values
        need(good, file, field, f"page of {self.count} values where there are {chunk.values}")
        listed = self.encoding in chunk.encodings and self.encoding in ENCODINGS
        need(listed, file, field, f"encoding {self.encoding}, which the chunk does not list")
        largest = _largest(chunk, self.count)
        need(size <= largest, file, field, "page claims more bytes than its values can take")
        data = read(position + cursor.position, stored)
        need(zlib.crc32(data) == crc & 0xFFFFFFFF, file, field, "page has another CRC")
        self.stored = stored
        self.data = _decompress(chunk, data, size)


def _levels(page: _Page, position: int, top: int, encoding: int) -> tuple[NDArray[np.uint8], int]:
    """Decode one stream of repetition or definition levels."""
    if encoding != RLE:
        raise DecodeError(f"levels of encoding {encoding}")
    size = int.from_bytes(page.data[position : position + 4], "little")
    position += 4
    if size > len(page.data) - position:
        raise DecodeError("levels run past their page")
    out = np.zeros(page.count, np.uint8)
    if hybrid(page.data, position, position + size, top.bit_length(), out) != position + size:
        raise DecodeError("bytes after the levels")
    if out.size and int(out.max()) > top:
        raise DecodeError("level out of range")
    return out, position + size


def _values(page: _Page, leaf: Leaf, position: int, count: int, dictionary: Any) -> Any:
    """Decode a page's values from a position to its end."""
    data, end = page.data, len(page.data)
    out: Any
    if page.encoding == PLAIN:
        out, position = plain(data, position, leaf, count)
    elif page.encoding in (RLE_DICTIONARY, PLAIN_DICTIONARY):
        if dictionary is None:
            raise DecodeError("no dictionary")
        indexes = np.zeros(count, np.uint32)
        if count or position < end:
            width = data[position] if position < end else 255
            position = hybrid(data, position + 1, end, width, indexes)
        if count and int(indexes.max()) >= len(dictionary):
            raise DecodeError("index past the dictionary's end")
        out = [dictionary[i] for i in indexes] if isinstance(dictionary, list) else dictionary[indexes]
    elif page.encoding == DELTA and leaf.physical in (INT32, INT64):
        out, position = delta(data, position, end, count, 32 if leaf.physical == INT32 else 64)
    elif page.encoding == RLE and leaf.physical == BOOLEAN:
        size = int.from_bytes(data[position : position + 4], "little")
        if size != end - position - 4:
            raise DecodeError("booleans do not fill their page")
        flags = np.zeros(count, np.uint8)
        position = hybrid(data, position + 4, end, 1, flags)
        out = flags.astype(bool)
    else:
        raise DecodeError(f"encoding {page.encoding} of type {leaf.physical}")
    if position != end:
        raise DecodeError("bytes after the values")
    return out


def _decoded(chunk: Chunk, page: _Page, dictionary: Any) -> Column:
    """Decode a data page: levels, then values."""
    leaf, at, defined = chunk.leaf, 0, page.count
    repetition, definition = None, None
    if leaf.max_repetition:
        code = integer(page.head, 4, "repetition_level_encoding")
        repetition, at = _levels(page, at, leaf.max_repetition, code)
    if leaf.max_definition:
        code = integer(page.head, 3, "definition_level_encoding")
        definition, at = _levels(page, at, leaf.max_definition, code)
        defined = int(np.count_nonzero(definition == leaf.max_definition))
    return Column(_values(page, leaf, at, defined, dictionary), definition, repetition)


def _empty(leaf: Leaf) -> Column:
    """Give no values."""
    none = np.zeros(0, np.uint8)
    values = plain(b"", 0, leaf, 0)[0]
    return Column(values, none if leaf.max_definition else None, none if leaf.max_repetition else None)


def read_page(chunk: Chunk, read: Read) -> tuple[Column, int]:
    """Prove, bound and decode the one data page at the start of a chunk; give where it ends."""
    try:
        page = _Page(chunk, read, chunk.start)
        need(page.kind == 0, chunk.file, chunk.field, "no data page where one belongs")
        return _decoded(chunk, page, None), page.end
    except (DecodeError, ThriftError) as error:
        raise Refused(chunk.file, chunk.field, str(error)) from error


def read_chunk(chunk: Chunk, read: Read) -> Column:
    """Prove, bound and decode one column chunk: at most one dictionary page, then one data page."""
    file, field = chunk.file, chunk.field
    position, end, dictionary, out = chunk.start, chunk.start + chunk.size, None, None
    decompressed = 0
    try:
        while position < end:
            page = _Page(chunk, read, position)
            if page.kind == 2:
                first = position == chunk.start and chunk.dictionary
                need(first, file, field, "misplaced dictionary page")
                plain_values = page.encoding in (PLAIN, PLAIN_DICTIONARY)
                need(plain_values, file, field, f"dictionary of encoding {page.encoding}")
                page.encoding = PLAIN
                dictionary = _values(page, chunk.leaf, 0, page.count, None)
            else:
                need(out is None, file, field, "more than one data page")
                out = _decoded(chunk, page, dictionary)
            decompressed += page.end - position - page.stored + len(page.data)
            position = page.end
    except (DecodeError, ThriftError) as error:
        raise Refused(file, field, str(error)) from error
    same = chunk.plain is None or chunk.plain == decompressed
    need(same, file, field, "pages decompress to another size than the footer's")
    need(chunk.dictionary == (dictionary is not None), file, field, "no dictionary page at its place")
    need(out is not None or chunk.may_be_empty, file, field, "no data page")
    return _empty(chunk.leaf) if out is None else out
