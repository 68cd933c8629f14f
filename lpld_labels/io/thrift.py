"""Thrift's compact protocol, as far as Parquet's footers and page headers need it.

What is read may come from anywhere: readers below take the fields they were asked for, skip all others, keep
within the bytes they were given and within a depth, and raise ValueError (or IndexError where bytes end).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
Reader: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]
"""(bytes, where the value begins, its type) -> (value, where it ends)."""
Struct: TypeAlias = dict[int, Any]
"""Values by the number of their field; only of fields that were asked for."""

_MAX_DEPTH = 16
_SIZES = {TRUE: 0, FALSE: 0, BYTE: 1, DOUBLE: 8}
"""Of types that always take the same number of bytes; truth values are in their type."""
_SMALLEST_LIST_SIZE = 15


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned number."""
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("number is too long")


def integer(data: bytes, at: int, kind: int) -> tuple[int, int]:
    """Read an integer of 16 to 64 bits."""
    if not I16 <= kind <= I64:
        raise ValueError(f"field of type {kind} where an integer belongs")
    value, at = varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def small_integer(data: bytes, at: int, kind: int) -> tuple[int, int]:
    """Read an integer of 8 bits."""
    if kind != BYTE:
        raise ValueError(f"field of type {kind} where a byte belongs")
    return data[at], at + 1


def boolean(data: bytes, at: int, kind: int) -> tuple[bool, int]:
    """Read a truth value, which its type holds."""
    del data
    if kind not in (TRUE, FALSE):
        raise ValueError(f"field of type {kind} where a truth value belongs")
    return kind == TRUE, at


def binary(data: bytes, at: int, kind: int) -> tuple[bytes, int]:
    """Read a byte string."""
    if kind != BINARY:
        raise ValueError(f"field of type {kind} where bytes belong")
    length, at = varint(data, at)
    if at + length > len(data):
        raise IndexError
    return data[at : at + length], at + length


def list_of(element: Reader) -> Reader:
    """Return what reads a list of such elements."""

    def read(data: bytes, at: int, kind: int) -> tuple[list[Any], int]:
        if kind != LIST:
            raise ValueError(f"field of type {kind} where a list belongs")
        count, inner, at = _list_header(data, at)
        values = []
        for _ in range(count):
            value, at = element(data, at, inner)
            values.append(value)
        return values, at

    return read


def struct_of(fields: Mapping[int, Reader]) -> Reader:
    """Return what reads these fields of a struct; a field that occurs twice is refused."""

    def read(data: bytes, at: int, kind: int) -> tuple[Struct, int]:
        if kind != STRUCT:
            raise ValueError(f"field of type {kind} where a struct belongs")
        return read_struct(data, at, fields)

    return read


def read_struct(data: bytes, at: int, fields: Mapping[int, Reader]) -> tuple[Struct, int]:
    """Read the struct at some place; return the fields asked for, and where it ends."""
    found: Struct = {}
    field = 0
    while True:
        byte = data[at]
        at += 1
        if byte == 0:
            return found, at
        delta, kind = byte >> 4, byte & 0x0F
        if delta:
            field += delta
        else:
            field, at = integer(data, at, I16)
        reader = fields.get(field)
        if reader is None:
            at = _skipped(data, at, kind, 1)
        elif field in found:
            raise ValueError(f"field {field} occurs twice")
        else:
            found[field], at = reader(data, at, kind)


def _list_header(data: bytes, at: int) -> tuple[int, int, int]:
    """Return number and type of a list's elements, and where the first one begins."""
    byte = data[at]
    at += 1
    count, kind = byte >> 4, byte & 0x0F
    if count == _SMALLEST_LIST_SIZE:
        count, at = varint(data, at)
    # Every element takes a byte at least.
    if count > len(data) - at:
        raise IndexError
    return count, kind, at


def _skipped(data: bytes, at: int, kind: int, depth: int) -> int:
    """Return where a value ends that nobody wants."""
    if depth > _MAX_DEPTH:
        raise ValueError("structs are nested too deep")
    if kind in _SIZES:
        return at + _SIZES[kind]
    if I16 <= kind <= I64:
        return varint(data, at)[1]
    if kind == BINARY:
        length, at = varint(data, at)
        return at + length
    if kind in (LIST, SET):
        count, inner, at = _list_header(data, at)
        for _ in range(count):
            # Truth values in lists take a byte each.
            at = at + 1 if inner in (TRUE, FALSE) else _skipped(data, at, inner, depth + 1)
        return at
    if kind == STRUCT:
        while byte := data[at]:
            at += 1
            if byte < 0x10:
                at = varint(data, at)[1]
            at = _skipped(data, at, byte & 0x0F, depth + 1)
        return at + 1
    raise ValueError(f"type {kind} does not occur in Parquet's metadata")


# Writing


def write_varint(value: int) -> bytes:
    """Return an unsigned number."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_integer(value: int) -> bytes:
    """Return an integer of up to 64 bits."""
    return write_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def write_binary(value: bytes) -> bytes:
    """Return a byte string."""
    return write_varint(len(value)) + value


def write_list(kind: int, elements: list[bytes]) -> bytes:
    """Return a list of elements of one type."""
    return bytes([0xF0 | kind]) + write_varint(len(elements)) + b"".join(elements)


def write_struct(fields: Mapping[int, tuple[int, bytes]]) -> bytes:
    """Return a struct of (type, value) by field number, in rising order."""
    out = []
    last = 0
    for field, (kind, value) in fields.items():
        out.append(bytes([(field - last) << 4 | kind]) + value)
        last = field
    return b"".join(out) + b"\0"
