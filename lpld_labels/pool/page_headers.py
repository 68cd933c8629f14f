"""Page headers of Parquet files: just enough of Thrift's compact protocol to check a page before it is used.

Arrow checks a page's CRC where the header has one and says nothing where it has none. The format demands
one of every page, and headers that agree with the footer, so headers are read here first.
"""

from __future__ import annotations

from dataclasses import dataclass

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

_MAX_DEPTH = 4
"""Structs inside structs; page headers have three."""
# Thrift compact protocol: types of fields.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DATA_HEADER, _DICTIONARY_HEADER = 5, 7


@dataclass(frozen=True, kw_only=True)
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
        cursor = _Cursor(data)
        found = cursor.struct()
    except IndexError:
        raise ValueError("page header is cut off") from None
    kind = found.get((0, 1))
    inner = _DICTIONARY_HEADER if kind == DICTIONARY_PAGE else _DATA_HEADER
    needed = [(0, 1), (0, 2), (0, 3), (inner, 1), (inner, 2)]
    levels = None
    if kind != DICTIONARY_PAGE:
        needed += [(inner, 3), (inner, 4)]
    if any(place not in found for place in needed):
        raise ValueError("page header lacks a field, or is of a kind that pools do not have")
    if kind != DICTIONARY_PAGE:
        levels = (found[inner, 3], found[inner, 4])
    crc = found.get((0, 4))
    return PageHeader(
        length=cursor.position,
        kind=found[0, 1],
        plain=found[0, 2],
        stored=found[0, 3],
        crc=None if crc is None else crc & 0xFFFFFFFF,
        values=found[inner, 1],
        encoding=found[inner, 2],
        levels=levels,
    )


class _Cursor:
    """Reads a struct's integer fields, one level deep, and skips what else page headers hold."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    def _byte(self) -> int:
        value = self._data[self.position]
        self.position += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("number in a page header is too long")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self, *, parent: int = 0, depth: int = 1) -> dict[tuple[int, int], int]:
        """Return integers as (field of the enclosing struct or 0, field) -> value."""
        if depth > _MAX_DEPTH:
            raise ValueError("structs are nested too deep for a page header")
        found: dict[tuple[int, int], int] = {}
        field = 0
        while byte := self._byte():
            delta, kind = byte >> 4, byte & 0x0F
            field = field + delta if delta else self._zigzag()
            if kind in (_I16, _I32, _I64):
                found[parent, field] = self._zigzag()
            elif kind == _STRUCT:
                inner = self.struct(parent=field, depth=depth + 1)
                if depth == 1:
                    found |= inner
            elif kind == _BINARY:
                length = self._varint()
                self.position += length
            elif kind == _BYTE:
                self.position += 1
            elif kind == _DOUBLE:
                self.position += 8
            elif kind not in (_TRUE, _FALSE):
                raise ValueError(f"field type {kind} does not occur in page headers")
        return found
