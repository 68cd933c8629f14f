"""Parquet's footers, taken apart here and put together again for Arrow.

A pool's manifest proves that a footer is the writer's, not that the writer meant well: a footer made for it
ends the process inside Arrow. So what pools need of it is read by a parser of our own, held against the
format, and written anew; Arrow sees that and not a byte of the original.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.io import thrift
from lpld_labels.io.thrift import Struct, binary, boolean, integer, list_of, small_integer, struct_of

MAGIC = b"PAR1"
TAIL_BYTES = 8
"""Of the length of the metadata and the magic number, behind them."""
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
"""Parquet's physical types."""
UNCOMPRESSED, ZSTD = 0, 6
_OPTIONAL, _REPEATED = 1, 2
_CONVERTED = {0: "string", 3: "list", 11: ("integer", 8, False), 17: "", 18: ""}
"""What older annotations mean; those of whole int32 and int64 say nothing new."""

_LOGICAL = struct_of(
    {
        1: struct_of({}),
        3: struct_of({}),
        10: struct_of({1: small_integer, 2: boolean}),
        15: struct_of({}),
        **{number: struct_of({}) for number in (2, 4, 5, 6, 7, 8, 11, 12, 13, 14, 16, 17, 18)},
    }
)
_ELEMENT = struct_of({1: integer, 2: integer, 3: integer, 4: binary, 5: integer, 6: integer, 10: _LOGICAL})
_CHUNK = struct_of(
    {
        1: integer,
        2: list_of(integer),
        3: list_of(binary),
        4: integer,
        5: integer,
        6: integer,
        7: integer,
        9: integer,
        10: integer,
        11: integer,
    }
)
_COLUMN = struct_of({1: binary, 3: _CHUNK, 8: struct_of({}), 9: binary})
_WHOLE = {number: struct_of({}) if number == 8 else binary for number in (8, 9)}
"""Encryption, which pools do not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """A column of values: dotted path, physical type, length of fixed values, whether it is in a list."""

    path: str
    type: int
    length: int
    repeated: bool

    @property
    def name(self) -> str:
        """The column of the table that it belongs to."""
        return self.path.split(".", 1)[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """One column of one row group.

    start, bytes: its place in the file. plain_bytes: with pages decompressed.
    encodings, compression: Parquet's numbers. dictionary: where its dictionary page begins, if it has one.
    """

    leaf: Leaf
    encodings: tuple[int, ...]
    compression: int
    values: int
    plain_bytes: int
    bytes: int
    data_page: int
    dictionary: int | None

    @property
    def start(self) -> int:
        return self.data_page if self.dictionary is None else self.dictionary


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGroup:
    """Rows, and a chunk for each leaf in order."""

    rows: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True)
class Footer:
    """What a footer says."""

    rows: int
    groups: tuple[RowGroup, ...]

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of all row groups."""
        for group in self.groups:
            yield from group.chunks


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """What the format's schema looks like in a footer: as compared, and as written."""

    elements: list[tuple[Any, ...]]
    leaves: tuple[Leaf, ...]
    written: bytes


def parse_footer(data: bytes, schema: pa.Schema) -> Footer:
    """Take a footer apart (metadata, length, magic number); ValueError for any that pools do not have."""
    if data[-4:] != MAGIC or int.from_bytes(data[-8:-4], "little") + TAIL_BYTES != len(data):
        raise ValueError("not a Parquet footer")
    layout = _layout(schema)
    body = data[:-TAIL_BYTES]
    fields = {
        2: list_of(_ELEMENT),
        3: integer,
        4: list_of(_row_groups(layout.leaves)),
        **_WHOLE,
    }
    try:
        found, end = thrift.read_struct(body, 0, fields)
    except IndexError:
        raise ValueError("footer is cut off") from None
    if end != len(body):
        raise ValueError("footer has bytes left over")
    if _WHOLE.keys() & found.keys():
        raise ValueError("file is encrypted")
    elements = [_compared(element) for element in found.get(2, [])]
    if elements != layout.elements:
        raise ValueError(f"columns differ from the format: {_difference(elements, layout.elements)}")
    return Footer(rows=_needed(found, 3), groups=tuple(found.get(4, [])))


def arrow_metadata(footer: Footer, schema: pa.Schema) -> pq.FileMetaData:
    """Return the same for Arrow."""
    layout = _layout(schema)
    groups = [_written_group(group) for group in footer.groups]
    body = thrift.write_struct(
        {
            1: (thrift.I32, thrift.write_integer(2)),
            2: (thrift.LIST, layout.written),
            3: (thrift.I64, thrift.write_integer(footer.rows)),
            4: (thrift.LIST, thrift.write_list(thrift.STRUCT, groups)),
        }
    )
    return pq.read_metadata(pa.BufferReader(MAGIC + body + len(body).to_bytes(4, "little") + MAGIC))


def _needed(struct: Struct, field: int) -> int:
    value = struct.get(field)
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"field {field} of the footer is missing or negative")
    return value


def _row_groups(leaves: tuple[Leaf, ...]) -> thrift.Reader:
    """Return what reads a row group and refuses it at once if it has other columns."""
    fields = {1: list_of(_COLUMN), 3: integer}

    def read(data: bytes, at: int, kind: int) -> tuple[RowGroup, int]:
        if kind != thrift.STRUCT:
            raise ValueError("row group is no struct")
        found, at = thrift.read_struct(data, at, fields)
        columns = found.get(1, [])
        if len(columns) != len(leaves):
            raise ValueError("row group has another number of columns")
        chunks = tuple(_chunk(column, leaf) for column, leaf in zip(columns, leaves, strict=True))
        return RowGroup(rows=_needed(found, 3), chunks=chunks), at

    return read


def _chunk(column: Struct, leaf: Leaf) -> Chunk:
    meta = column.get(3)
    if meta is None or len(column) != 1 or 10 in meta:
        raise ValueError(f"column {leaf.path} is encrypted, indexed or in another file")
    if b".".join(meta.get(3, [])) != leaf.path.encode() or meta.get(1) != leaf.type:
        raise ValueError(f"column {leaf.path} is another one")
    return Chunk(
        leaf=leaf,
        encodings=tuple(meta.get(2, [])),
        compression=_needed(meta, 4),
        values=_needed(meta, 5),
        plain_bytes=_needed(meta, 6),
        bytes=_needed(meta, 7),
        data_page=_needed(meta, 9),
        dictionary=_needed(meta, 11) if 11 in meta else None,
    )


def _written_group(group: RowGroup) -> bytes:
    columns = [
        thrift.write_struct({2: _long(0), 3: (thrift.STRUCT, _written_chunk(chunk))})
        for chunk in group.chunks
    ]
    return thrift.write_struct(
        {
            1: (thrift.LIST, thrift.write_list(thrift.STRUCT, columns)),
            2: _long(sum(chunk.plain_bytes for chunk in group.chunks)),
            3: _long(group.rows),
        }
    )


def _written_chunk(chunk: Chunk) -> bytes:
    path = [thrift.write_binary(part.encode()) for part in chunk.leaf.path.split(".")]
    encodings = [thrift.write_integer(number) for number in chunk.encodings]
    fields = {
        1: (thrift.I32, thrift.write_integer(chunk.leaf.type)),
        2: (thrift.LIST, thrift.write_list(thrift.I32, encodings)),
        3: (thrift.LIST, thrift.write_list(thrift.BINARY, path)),
        4: (thrift.I32, thrift.write_integer(chunk.compression)),
        5: _long(chunk.values),
        6: _long(chunk.plain_bytes),
        7: _long(chunk.bytes),
        9: _long(chunk.data_page),
    }
    if chunk.dictionary is not None:
        fields[11] = _long(chunk.dictionary)
    return thrift.write_struct(fields)


def _long(value: int) -> tuple[int, bytes]:
    return thrift.I64, thrift.write_integer(value)


# The schema


@cache
def _layout(schema: pa.Schema) -> _Layout:
    """Let Arrow write an empty file, and see how it puts the schema."""
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink, store_schema=False)
    data = sink.getvalue()
    body = data[-int.from_bytes(data[-8:-4], "little") - TAIL_BYTES : -TAIL_BYTES]
    spans: list[bytes] = []

    def spanned(data: bytes, at: int, kind: int) -> tuple[list[Struct], int]:
        elements, end = list_of(_ELEMENT)(data, at, kind)
        spans.append(data[at:end])
        return elements, end

    found, _ = thrift.read_struct(body, 0, {2: spanned})
    elements = [_compared(element) for element in found[2]]
    return _Layout(elements=elements, leaves=tuple(_leaves(found[2])), written=spans[0])


def _compared(element: Struct) -> tuple[Any, ...]:
    """Return what must agree of a schema element: name, type, length, repetition, children, meaning."""
    logical: Mapping[int, Any] | None = element.get(10)
    if logical is None:
        meaning: Any = _CONVERTED.get(element.get(6, 17), ("converted", element.get(6)))
    elif len(logical) != 1:
        meaning = ("logical", tuple(logical))
    else:
        meaning = _meaning(next(iter(logical)), next(iter(logical.values())))
    children = element.get(5, 0)
    # The root has no repetition, whatever it says.
    return (
        element.get(4) if element.get(1) is not None or element.get(3) is not None else b"",
        element.get(1),
        element.get(2, 0) if element.get(1) == FIXED else 0,
        element.get(3),
        children,
        meaning,
    )


def _meaning(number: int, inside: Mapping[int, Any]) -> Any:
    if number == 1:
        return "string"
    if number == 3:
        return "list"
    if number == 10:
        width, signed = inside.get(1), inside.get(2)
        return "" if signed and width in (32, 64) else ("integer", width, signed)
    return ("logical", number)


def _leaves(elements: list[Struct]) -> Iterator[Leaf]:
    """Yield the columns of values of a schema, which is a tree written from the root down."""
    open_: list[tuple[int, str, bool]] = []
    for number, element in enumerate(elements):
        children, name = element.get(5, 0), element[4].decode()
        above, repeated = (open_[-1][1], open_[-1][2]) if open_ else ("", False)
        path = name if not above else f"{above}.{name}"
        inside = repeated or element.get(3) == _REPEATED
        if open_:
            open_[-1] = (open_[-1][0] - 1, above, repeated)
        if number == 0:
            open_.append((children, "", False))
        elif children:
            open_.append((children, path, inside))
        else:
            yield Leaf(path=path, type=element[1], length=element.get(2, 0), repeated=inside)
        while open_ and open_[-1][0] == 0:
            open_.pop()


def _difference(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> str:
    """Say in a few words where two schemas part."""
    names = [
        [str((e[0] or b"").decode("utf-8", "replace"))[:40] for e in schema[1:40]]
        for schema in (found, expected)
    ]
    return f"{names[0]} where {names[1]} belong"
