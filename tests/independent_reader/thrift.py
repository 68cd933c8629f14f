"""Thrift's compact protocol, as far as Parquet's headers and footers need it."""

from __future__ import annotations

import struct
from typing import Any

Struct = dict[int, Any]
_MAX_DEPTH = 16


class ThriftError(Exception):
    """Bytes that are no compact-protocol struct."""


class Compact:
    """A cursor over bytes. Structs become dicts from field number to value."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        """Start at a position of the data."""
        self.data = data
        self.position = position

    def _byte(self) -> int:
        """Read one byte."""
        if self.position >= len(self.data):
            raise ThriftError("runs past its end")
        value = self.data[self.position]
        self.position += 1
        return value

    def _varint(self) -> int:
        """Read an unsigned varint of at most 64 bits."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 2**64:
                    raise ThriftError("integer of more than 64 bits")
                return value
        raise ThriftError("integer of more than 64 bits")

    def _integer(self, bits: int) -> int:
        """Read a zigzag integer of a given width."""
        raw = self._varint()
        if raw >= 2**bits:
            raise ThriftError(f"integer of more than {bits} bits")
        return (raw >> 1) ^ -(raw & 1)

    def _take(self, size: int) -> bytes:
        """Read so many bytes, which is checked against what is left."""
        if size > len(self.data) - self.position:
            raise ThriftError("runs past its end")
        self.position += size
        return self.data[self.position - size : self.position]

    def _list(self, depth: int) -> list[Any]:
        """Read a list; each item takes at least one byte, so what is left bounds it."""
        head = self._byte()
        size = head >> 4
        if size == 15:
            size = self._varint()
        if size > len(self.data) - self.position:
            raise ThriftError("list runs past its end")
        kind = head & 15
        if kind in (1, 2):
            return [self._byte() == 1 for _ in range(size)]
        return [self._value(kind, depth) for _ in range(size)]

    def _map(self, depth: int) -> list[tuple[Any, Any]]:
        """Read a map as pairs."""
        size = self._varint()
        if size == 0:
            return []
        if size > len(self.data) - self.position:
            raise ThriftError("map runs past its end")
        kinds = self._byte()
        return [(self._value(kinds >> 4, depth), self._value(kinds & 15, depth)) for _ in range(size)]

    def _value(self, kind: int, depth: int) -> Any:
        """Read one value of a compact type."""
        if depth > _MAX_DEPTH:
            raise ThriftError("nested too deep")
        if kind in (3, 7):
            raw = self._take(1 if kind == 3 else 8)
            return struct.unpack("b" if kind == 3 else "<d", raw)[0]
        if kind in (4, 5, 6):
            return self._integer(16 << (kind - 4))
        if kind == 8:
            return self._take(self._varint())
        if kind in (9, 10):
            return self._list(depth + 1)
        if kind == 11:
            return self._map(depth + 1)
        if kind == 12:
            return self.struct(depth + 1)
        raise ThriftError(f"unknown type {kind}")

    def struct(self, depth: int = 0) -> Struct:
        """Read a struct; refuse a field number that occurs twice."""
        out: Struct = {}
        number = 0
        while True:
            head = self._byte()
            if head == 0:
                return out
            number = number + (head >> 4) if head >> 4 else self._integer(16)
            if number in out:
                raise ThriftError(f"field {number} occurs twice")
            kind = head & 15
            out[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth)


def integer(fields: Struct, number: int, what: str) -> int:
    """Take a required integer field."""
    value = fields.get(number)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ThriftError(f"{what} is missing or no integer")
    return value


def optional_integer(fields: Struct, number: int, what: str) -> int | None:
    """Take an optional integer field."""
    return integer(fields, number, what) if number in fields else None


def text(fields: Struct, number: int, what: str) -> str:
    """Take a required string field."""
    value = fields.get(number)
    if not isinstance(value, bytes):
        raise ThriftError(f"{what} is missing or no string")
    return value.decode("utf-8", errors="backslashreplace")


def structs(fields: Struct, number: int, what: str) -> list[Struct]:
    """Take a required list of structs."""
    value = fields.get(number)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ThriftError(f"{what} is missing or no list of structs")
    return value


def integers(fields: Struct, number: int, what: str) -> list[int]:
    """Take a required list of integers."""
    value = fields.get(number)
    if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        raise ThriftError(f"{what} is missing or no list of integers")
    return value


def child(fields: Struct, number: int, what: str) -> Struct:
    """Take a required struct."""
    value = fields.get(number)
    if not isinstance(value, dict):
        raise ThriftError(f"{what} is missing or no struct")
    return value
