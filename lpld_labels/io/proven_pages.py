"""Column chunks and their pages are what the footer, which is proven, and the format say.

Every page is looked at before Arrow decodes it: its header, its checksum, and how much it may grow.
"""

from __future__ import annotations

import pyarrow as pa
from isal import isal_zlib

from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.limits import (
    MAX_HEADER_BYTES,
    MAX_IMAGE_FILE_BYTES,
    MAX_PAGE_BYTES,
    MAX_PATH_BYTES,
    MAX_VIEW_VALUES,
    PAGE_SPARE_BYTES,
    PAGE_SPARE_PER_VALUE,
)
from lpld_labels.io.footers import (
    BOOLEAN,
    BYTE_ARRAY,
    DOUBLE,
    FIXED,
    FLOAT,
    INT32,
    INT64,
    MAGIC,
    UNCOMPRESSED,
    ZSTD,
    Chunk,
    Leaf,
)
from lpld_labels.io.page_headers import (
    DATA_PAGE,
    DICTIONARY_PAGE,
    ENCODINGS,
    PLAIN,
    RLE,
    PageHeader,
    parse_header,
)

_COMPRESSIONS = {UNCOMPRESSED: "none", ZSTD: "zstd"}
_RESTORE = "restore this file"
_WIDTHS = {BOOLEAN: 1, INT32: 4, FLOAT: 4, INT64: 8, DOUBLE: 8}
_STRING_LENGTH = 4


def check_chunk(chunk: Chunk, *, rows: int, size: int, plain: bool, where: str) -> None:
    """Refuse a column chunk outside the file's data or of a kind that pools do not have.

    rows: of its row group. size: bytes of the file before its footer.
    plain: whether its values must lie there as they are, neither encoded nor compressed.
    """
    if chunk.start < len(MAGIC) or chunk.start + chunk.bytes > size:
        raise PoolCorruptError(
            "column chunk lies outside the data",
            where=where,
            expected=f"below {size}",
            got=(chunk.start, chunk.bytes),
        )
    if chunk.compression not in ((UNCOMPRESSED,) if plain else _COMPRESSIONS):
        raise PoolCorruptError(
            "compression is not one that the format has here",
            where=where,
            expected="none" if plain else " or ".join(_COMPRESSIONS.values()),
            got=_COMPRESSIONS.get(chunk.compression, f"Parquet's number {chunk.compression}"),
        )
    unknown = set(chunk.encodings) - set(ENCODINGS)
    if unknown:
        raise PoolCorruptError(
            "encoding is not one of the format's",
            where=where,
            expected=list(ENCODINGS.values()),
            got=f"Parquet's numbers {sorted(unknown)[:20]}",
        )
    # A dictionary of one long string would be repeated for every row.
    if chunk.dictionary is not None and (plain or chunk.leaf.type == BYTE_ARRAY):
        raise PoolCorruptError("column has a dictionary", where=where, expected="plain values")
    most = MAX_VIEW_VALUES if chunk.leaf.repeated else rows
    if not rows <= chunk.values <= most:
        raise PoolCorruptError(
            "column has another number of values than its row group allows",
            where=where,
            expected=f"{rows} to {most}",
            got=chunk.values,
        )


def _value_width(leaf: Leaf) -> int:
    """Return the most bytes that a value takes in a page."""
    if leaf.type == FIXED:
        return leaf.length
    strings = MAX_IMAGE_FILE_BYTES if leaf.path == "image.bytes" else MAX_PATH_BYTES
    return _WIDTHS.get(leaf.type, _STRING_LENGTH + strings)


def prove_chunk(data: pa.Buffer, chunk: Chunk, *, plain: bool, where: str) -> None:
    """Check the headers and checksums of a column chunk's pages, which fill it exactly."""
    view = memoryview(data).cast("B")
    start = values = decompressed = pages = 0
    while start < len(view):
        try:
            header = parse_header(view[start : start + MAX_HEADER_BYTES])
        except ValueError as error:
            raise PoolCorruptError(f"page header is damaged: {error}", where=where, hint=_RESTORE) from None
        stop = start + header.length + header.stored
        problem = _page_problem(header, chunk, plain=plain, first=start == 0)
        if problem or not start < stop <= len(view):
            raise PoolCorruptError(problem or "page reaches beyond its chunk", where=where, hint=_RESTORE)
        if isal_zlib.crc32(view[start + header.length : stop]) != header.crc:
            raise PoolCorruptError("page checksum does not match", where=where, hint=_RESTORE)
        values += header.values if header.kind == DATA_PAGE else 0
        pages += header.kind == DATA_PAGE
        decompressed += header.length + header.plain
        start = stop
    for name, expected, got in (
        ("values", chunk.values, values),
        ("bytes", chunk.plain_bytes, decompressed),
        ("data pages", 1 if chunk.values else pages, pages),
    ):
        if expected != got:
            raise PoolCorruptError(
                f"column chunk has another number of {name}", where=where, expected=expected, got=got
            )


def _page_problem(header: PageHeader, chunk: Chunk, *, plain: bool, first: bool) -> str | None:
    """Return what a page header says that its column chunk does not allow."""
    dictionary = header.kind == DICTIONARY_PAGE
    width = _value_width(chunk.leaf) + PAGE_SPARE_PER_VALUE
    largest = min(width * max(header.values, 0) + PAGE_SPARE_BYTES, MAX_PAGE_BYTES)
    rules = (
        (
            header.kind in (DATA_PAGE, DICTIONARY_PAGE)
            and dictionary == (first and chunk.dictionary is not None),
            "page is of another kind than the footer says",
        ),
        (header.crc is not None, "page has no checksum"),
        (
            header.encoding in ENCODINGS and header.encoding in chunk.encodings,
            "page has an encoding that the footer does not list",
        ),
        (header.encoding == PLAIN or not plain, "page is not plain"),
        (header.levels in (None, (RLE, RLE)), "page has another encoding of levels than RLE"),
        (
            0 <= header.values <= chunk.values and 0 <= header.plain <= largest and header.stored >= 0,
            "page claims more than its chunk can hold",
        ),
        (
            chunk.compression != UNCOMPRESSED or header.plain == header.stored,
            "page has another decompressed size",
        ),
    )
    return next((problem for kept, problem in rules if not kept), None)
