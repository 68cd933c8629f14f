"""Page headers of Parquet files, to check a page before it is used.

Arrow checks a page's CRC where the header has one and says nothing where it has none. The format demands
one of every page, and headers that agree with the footer, so headers are read here first.
"""

from __future__ import annotations

from dataclasses import dataclass

from lpld_labels.io.thrift import Struct, integer, read_struct, struct_of

DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)
PLAIN, PLAIN_DICTIONARY, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY = 0, 2, 3, 5, 8
ENCODINGS = {
    PLAIN: "PLAIN",
    PLAIN_DICTIONARY: "PLAIN_DICTIONARY",
    RLE: "RLE",
    DELTA_BINARY_PACKED: "DELTA_BINARY_PACKED",
    RLE_DICTIONARY: "RLE_DICTIONARY",
}
"""The encodings that pools may use, by Parquet's number."""

_USUAL_BYTES = 64
"""Nearly all headers are shorter: no need to copy as much as one may have."""
_HEADER = {
    1: integer,
    2: integer,
    3: integer,
    4: integer,
    5: struct_of({1: integer, 2: integer, 3: integer, 4: integer}),
    7: struct_of({1: integer, 2: integer}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PageHeader:
    """What a header says of its page.

    length: bytes of the header itself. stored, plain: bytes of the page as it lies in the file and
    decompressed. crc: CRC-32 of the stored bytes, None where the header has none.
    levels: encodings of definition and repetition levels; None for dictionaries, which have none.
    """

    length: int
    kind: int
    plain: int
    stored: int
    crc: int | None
    values: int
    encoding: int
    levels: tuple[int, int] | None


def parse_header(data: memoryview) -> PageHeader:
    """Read the page header at the start of some bytes; ValueError if there is none."""
    try:
        found, length = _parsed(data)
    except IndexError:
        raise ValueError("page header is cut off") from None
    dictionary = found.get(1) == DICTIONARY_PAGE
    try:
        inner = found[7 if dictionary else 5]
        return PageHeader(
            length=length,
            kind=found[1],
            plain=found[2],
            stored=found[3],
            crc=found[4] & 0xFFFFFFFF if 4 in found else None,
            values=inner[1],
            encoding=inner[2],
            levels=None if dictionary else (inner[3], inner[4]),
        )
    except KeyError:
        raise ValueError("page header lacks a field, or is of a kind that pools do not have") from None


def _parsed(data: memoryview) -> tuple[Struct, int]:
    if len(data) > _USUAL_BYTES:
        try:
            return read_struct(bytes(data[:_USUAL_BYTES]), 0, _HEADER)
        except IndexError:
            pass
    return read_struct(bytes(data), 0, _HEADER)
