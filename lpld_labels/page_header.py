"""Parquet page headers: how long a page is, what is in it and its CRC-32. pyarrow does not show them."""

from __future__ import annotations

from dataclasses import dataclass

DATA_PAGE = 0
PLAIN = 0
# Thrift compact protocol: field types that need skipping, by their low four bits.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


@dataclass(frozen=True, kw_only=True)
class PageHeader:
    """length: of the header itself. page_bytes: of the page after it. values: how many, nulls included."""

    length: int
    kind: int
    page_bytes: int
    crc: int | None
    values: int
    encoding: int


def parse_page_header(data: memoryview) -> PageHeader | None:
    """Read the header that `data` begins with; None if it is not one."""
    try:
        cursor = _Cursor(data)
        top = cursor.struct(nested=5)
    except (IndexError, ValueError):
        return None
    page = {field: value for (parent, field), value in top.items() if parent == 5}
    head = {field: value for (parent, field), value in top.items() if parent == 0}
    if not {1, 3} <= head.keys() or not {1, 2} <= page.keys():
        return None
    return PageHeader(
        length=cursor.position,
        kind=head[1],
        page_bytes=head[3],
        crc=head[4] & 0xFFFFFFFF if 4 in head else None,
        values=page[1],
        encoding=page[2],
    )


class _Cursor:
    """Just enough of Thrift's compact protocol for page headers."""

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
                raise ValueError("varint too long")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self, *, nested: int = 0, parent: int = 0) -> dict[tuple[int, int], int]:
        """Return the integer fields of a struct as (parent, field) -> value, entering field `nested`."""
        found: dict[tuple[int, int], int] = {}
        field = 0
        while byte := self._byte():
            delta, kind = byte >> 4, byte & 0x0F
            field = field + delta if delta else self._zigzag()
            if kind in (_I16, _I32, _I64):
                found[parent, field] = self._zigzag()
            elif kind == _STRUCT:
                inner = self.struct(parent=field)
                if field == nested:
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
