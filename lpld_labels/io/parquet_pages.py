"""Pages of Parquet files: headers, checksums, and the format's rules for pages.

Labels are read page by page, at the offsets that the batch index stores. `verify` checks the pages of every
file before Arrow decodes them, and refuses missing checksums and decompression bombs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from isal import isal_zlib

from lpld_labels.errors import PoolCorruptError
from lpld_labels.format import limits
from lpld_labels.io.random_access import ByteSource

DATA_PAGE, DICTIONARY_PAGE = 0, 2
PLAIN, PLAIN_DICTIONARY, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY = 0, 2, 3, 5, 8
_ENCODINGS = {
    DATA_PAGE: (PLAIN, PLAIN_DICTIONARY, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY),
    DICTIONARY_PAGE: (PLAIN, PLAIN_DICTIONARY),
}
_FIRST_BYTE = 4
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_STRING_LENGTH = 4
_USUAL_BYTES = 64  # Parsed at first; nearly all headers are shorter.
_INTEGERS = (5, 6, 4)
_MAX_FIELD = 16 * 16 * 16  # Structs nest three deep: page header, data page header, statistics.
_RESTORE = "restore this file"


class Page(NamedTuple):
    """A page header.

    header, stored, plain: size in bytes of the header, the stored page and the decompressed page.
    crc: CRC-32 of the stored page. levels: (definition, repetition) encodings; None in dictionary pages.
    """

    header: int
    kind: int
    stored: int
    plain: int
    crc: int | None
    values: int
    encoding: int
    levels: tuple[int, int] | None


def parse_page(data: memoryview, where: str) -> Page:
    """Parse the page header at the start of `data`."""
    fields: dict[int, int] = {}
    try:
        try:
            header = _read_struct(bytes(data[:_USUAL_BYTES]), 0, fields)
        except IndexError:
            header = _read_struct(bytes(data[: limits.MAX_HEADER_BYTES]), 0, fields)
        dictionary = fields[1] == DICTIONARY_PAGE
        inner = 16 * (7 if dictionary else 5)
        page = Page(
            header=header,
            kind=fields[1],
            plain=fields[2],
            stored=fields[3],
            crc=fields[4] & 0xFFFFFFFF if 4 in fields else None,
            values=fields[inner + 1],
            encoding=fields[inner + 2],
            levels=None if dictionary else (fields[inner + 3], fields[inner + 4]),
        )
    except IndexError:
        raise PoolCorruptError("page header is truncated", where=where, hint=_RESTORE) from None
    except KeyError:
        raise PoolCorruptError("page header lacks a field", where=where, hint=_RESTORE) from None
    except ValueError as error:
        raise PoolCorruptError(f"page header is damaged: {error}", where=where, hint=_RESTORE) from None
    if page.crc is None:
        raise PoolCorruptError("page has no checksum", where=where, hint=_RESTORE)
    return page


def check_crc(page: Page, body: memoryview, where: str) -> None:
    """Refuse a page whose checksum does not match."""
    if isal_zlib.crc32(body) != page.crc:
        raise PoolCorruptError("page checksum does not match", where=where, hint=_RESTORE)


def _read_struct(data: bytes, at: int, fields: dict[int, int], above: int = 0) -> int:
    """Read a Thrift struct; return the offset of its end. Field n of struct m is fields[16 * m + n]."""
    number = above
    while byte := data[at]:
        kind = byte & 0x0F
        number += byte >> 4
        if byte < 0x10 or number > _MAX_FIELD:
            raise ValueError("unsupported field header")
        at += 1
        if kind == 12:
            at = _read_struct(data, at, fields, 16 * number)
        elif kind in _INTEGERS:
            value = data[at]
            at += 1
            if value >= 0x80:
                value, at = _varint(data, at - 1)
            fields[number] = (value >> 1) ^ -(value & 1)
        elif kind == 8:  # byte string, in statistics
            size, at = _varint(data, at)
            at += size
        elif kind not in (1, 2):  # booleans have no value bytes
            raise ValueError("unsupported field type")
    return at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("integer is too long")


class Chunk(NamedTuple):
    """The pages of a column in a row group. bytes, plain: stored and decompressed size in bytes."""

    group: int
    column: str
    offset: int
    bytes: int
    plain: int


class _Leaf(NamedTuple):
    """A leaf column. width: bytes per value, None for byte strings. repeated: whether values are in lists."""

    path: str
    width: int | None
    repeated: bool


def walk_pages(
    file: ByteSource, schema: pa.Schema, group_rows: Sequence[int], end: int, *, plain: Sequence[str] = ()
) -> Iterator[Chunk]:
    """Check all pages of a file and yield all column chunks. The chunks must fill the file up to the footer.

    end: offset of the footer. plain: columns (e.g. `labels`) that must be neither encoded nor compressed.
    """
    leaves = [leaf for field in schema for leaf in _leaves(field.name, field.type)]
    at = _FIRST_BYTE
    for group, rows in enumerate(group_rows):
        for leaf in leaves if rows else ():
            start = at
            where = f"{file.where}, row group {group}, column {leaf.path}"
            page, at = _checked_page(file, at, end, leaf, rows, leaf.path in plain, where)
            size = page.plain
            if page.kind == DICTIONARY_PAGE:
                page, at = _checked_page(file, at, end, leaf, rows, leaf.path in plain, where)
                size += page.plain
            if page.kind != DATA_PAGE:
                raise PoolCorruptError("column chunk has no data page", where=where)
            yield Chunk(group, leaf.path.split(".", 1)[0], start, at - start, size)
    # A file without rows may have pages without values, which are never read.
    if at != end and any(group_rows):
        raise PoolCorruptError(f"bytes {at} to {end} belong to no column", where=file.where)


def _leaves(path: str, kind: pa.DataType, *, repeated: bool = False) -> Iterator[_Leaf]:
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type, repeated=repeated)
    elif pa.types.is_list(kind):
        yield from _leaves(path, kind.value_type, repeated=True)
    else:
        text = pa.types.is_string(kind) or pa.types.is_binary(kind)
        # The smallest integer type of Parquet has four bytes.
        yield _Leaf(path, None if text else max(kind.bit_width // 8, 4), repeated)


def _checked_page(
    file: ByteSource, at: int, end: int, leaf: _Leaf, rows: int, plain: bool, where: str
) -> tuple[Page, int]:
    """Check the page at offset `at`; return the page header and the offset at which the page ends."""
    start = file.read(at, max(0, min(limits.MAX_HEADER_BYTES, end - at)))
    page = parse_page(memoryview(start).cast("B"), where)
    dictionary = page.kind == DICTIONARY_PAGE
    compressed = page.stored != page.plain
    body, stop = at + page.header, at + page.header + page.stored
    fewest = 0 if dictionary else rows
    # Plain values cannot be larger than the file, so a loose limit is enough.
    most = rows if not leaf.repeated else limits.MAX_ROWS if plain else limits.MAX_VIEW_VALUES
    width = _STRING_LENGTH + limits.MAX_PATH_BYTES if leaf.width is None else leaf.width
    largest = (width + limits.PAGE_SPARE_PER_VALUE) * page.values + limits.PAGE_SPARE_BYTES
    largest = min(largest, limits.MAX_PAGE_BYTES)
    rules = (
        (page.kind in _ENCODINGS, "page type is not allowed in pools"),
        (page.encoding in _ENCODINGS.get(page.kind, ()), "page encoding is not allowed in pools"),
        (page.levels in (None, (RLE, RLE)), "definition or repetition levels are not RLE-encoded"),
        (not dictionary or (leaf.width is not None and not plain), "column must not have a dictionary"),
        (not plain or (page.encoding == PLAIN and not compressed), "page must not be encoded or compressed"),
        (fewest <= page.values <= most, "number of values in the page does not fit the row group"),
        (not compressed or 0 <= page.plain <= largest, "page is too large for its number of values"),
        (body <= stop <= end, "page extends beyond the start of the footer"),
    )
    problem = next((problem for kept, problem in rules if not kept), None)
    if problem is not None:
        raise PoolCorruptError(problem, where=where, hint=_RESTORE)
    data = memoryview(file.read(body, page.stored)).cast("B")
    check_crc(page, data, where)
    if compressed and data[: len(_ZSTD_MAGIC)] != _ZSTD_MAGIC:
        raise PoolCorruptError("page is not compressed with zstd", where=where)
    return page, stop
