"""Parquet files of our own: all encodings, damage, limits."""

from __future__ import annotations

import struct
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .errors import Refused
from .files import FileEntry
from .pages import Chunk, read_page
from .parquet import Parquet
from .schema import (
    BOOLEAN,
    BYTES,
    DOUBLE,
    FIXED,
    INT32,
    INT64,
    Node,
    column,
    leaves,
    list_column,
    string_column,
)

NODES = (
    column("i", INT32), column("n", INT64, optional=True), column("d", DOUBLE, optional=True),
    column("b", BOOLEAN), string_column("s"), column("x", FIXED, optional=True, length=3),
    column("o", BYTES, optional=True),
    list_column("l", Node("element", 0, INT32, annotation="UINT8"), optional=True),
)  # fmt: skip
WORDS: Any = ["i", "n", "d", "x", "l.list.element"]
"""Columns that may have a dictionary: all but byte strings of any length."""


def own_table(rows: int) -> pa.Table:
    """Make a table of all types with nulls and lists."""
    rng = np.random.default_rng(rows)

    def some(values: list[Any]) -> list[Any]:
        """Make a third of the values null."""
        return [None if rng.random() < 0.33 else value for value in values]

    data = {
        "i": np.cumsum(rng.integers(-3, 2**29, rows)).astype(np.int32).tolist(),
        "n": some(rng.integers(-(2**63), 2**63 - 1, rows).tolist()),
        "d": some(rng.integers(0, 9, rows).tolist()),
        "b": (rng.random(rows) < 0.5).tolist(), "s": [f"ä{int(v)}" for v in rng.integers(0, 50, rows)],
        "x": some([rng.bytes(3) for _ in range(rows)]),
        "o": some([rng.bytes(int(v)) for v in rng.integers(0, 9, rows)]),
        "l": some([rng.integers(0, 256, int(v)).tolist() for v in rng.integers(0, 5, rows)]),
    }  # fmt: skip
    kinds = [pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.binary(3), pa.binary(),
             pa.list_(pa.field("element", pa.uint8(), nullable=False))]  # fmt: skip
    fields = [pa.field(n, k, nullable=n not in "ibs") for n, k in zip(data, kinds, strict=True)]
    return pa.table(data, pa.schema(fields))


def own_entry(path: Path, rows: int) -> FileEntry:
    """Make the manifest's entry of a file."""
    data = path.read_bytes()
    size = struct.unpack("<I", data[-8:-4])[0] + 8
    digest = sha256(data).hexdigest()
    return FileEntry(path.name, "x", "x", len(data), rows, digest, size, sha256(data[-size:]).hexdigest())


@pytest.mark.parametrize("coding", [
    {"use_dictionary": False, "compression": "none", "column_encoding": {"i": "DELTA_BINARY_PACKED",
     "b": "RLE", "n": "DELTA_BINARY_PACKED"}},
    {"compression": "zstd", "use_dictionary": WORDS}, {"compression": "zstd", "use_dictionary": False},
    {"compression": "none", "version": "1.0", "use_dictionary": WORDS},
])  # fmt: skip
@pytest.mark.parametrize("rows", [0, 1, 33, 3000])
def test_own_files_read_as_pyarrow_reads_them(tmp_path: Path, coding: dict[str, Any], rows: int) -> None:
    """All encodings and several row groups."""
    table, path = own_table(rows), tmp_path / "own.parquet"
    pq.write_table(table, path, write_page_checksum=True, row_group_size=1100, **coding)
    file = Parquet(tmp_path, own_entry(path, rows), NODES, per_row=5)
    got: dict[str, list[Any]] = {leaf.dotted: [] for leaf in file.leaves}
    for number in range(len(file.groups)):
        for leaf in file.leaves:
            found = file.column(number, leaf.dotted)
            values = [v.tobytes() for v in found.values] if leaf.physical == FIXED else list(found.values)
            rest = iter(values)
            if found.definition is not None and not leaf.max_repetition:
                values = [next(rest) if level else None for level in found.definition]
            elif found.definition is not None and found.repetition is not None:
                values = []
                for again, level in zip(found.repetition, found.definition, strict=True):
                    if not again:
                        values.append([] if level else None)
                    if level == 2:
                        values[-1].append(int(next(rest)))
            got[leaf.dotted] += values
    for name, column_name in zip(got, table.column_names, strict=True):
        wanted: list[Any] = table[column_name].to_pylist()
        assert got[name] == ([v.encode() for v in wanted] if column_name == "s" else wanted)


def test_more_than_one_page(tmp_path: Path) -> None:
    """A chunk of two data pages is refused, and one whose dictionary was given up."""
    codings: tuple[dict[str, Any], ...] = (
        {"use_dictionary": False, "data_page_size": 999},
        {"dictionary_pagesize_limit": 200, "use_dictionary": WORDS},
    )
    for coding in codings:
        path = tmp_path / "own.parquet"
        pq.write_table(own_table(3000), path, write_page_checksum=True, compression="none", **coding)
        file = Parquet(tmp_path, own_entry(path, 3000), NODES, per_row=5)
        with pytest.raises(Refused, match="values where there are"):
            file.column(0, "i")


def test_own_files_damaged(tmp_path: Path) -> None:
    """A page byte, a missing CRC, a footer byte, header bytes: refused or, where nothing changed, read."""
    path = tmp_path / "own.parquet"
    pq.write_table(own_table(40), path, write_page_checksum=True, use_dictionary=WORDS, compression="none")
    whole = path.read_bytes()
    entry = own_entry(path, 40)
    refused = 0
    for position in range(4, entry.bytes - 8, 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0x15
        path.write_bytes(damaged)
        try:
            file = Parquet(tmp_path, own_entry(path, 40), NODES, per_row=5)
            for leaf in file.leaves:
                file.column(0, leaf.dotted)
        except Refused:
            refused += 1
        if position >= entry.bytes - (entry.footer_bytes or 0):
            with pytest.raises(Refused, match="footer"):
                Parquet(tmp_path, entry, NODES, per_row=5)
    assert refused > 120
    pq.write_table(own_table(40), path, compression="none", use_dictionary=WORDS)
    with pytest.raises(Refused, match="without a CRC"):
        Parquet(tmp_path, own_entry(path, 40), NODES, per_row=5).column(0, "i")


def varint(value: int) -> bytes:
    """Encode an unsigned varint."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def page(data: bytes, count: int, **changes: Any) -> bytes:
    """Make a data page of required values with a header of our own."""
    what: dict[str, Any] = {"kind": 0, "size": len(data), "stored": len(data), "crc": zlib.crc32(data)}
    what |= {"encoding": 0, "statistics": 0, "head": 5} | changes

    def number(value: int) -> bytes:
        """Encode the next field as a 32-bit integer."""
        return b"\x15" + varint((value << 1 ^ value >> 31) & 0xFFFFFFFF)

    crc = what["crc"]
    out = number(what["kind"]) + number(what["size"]) + number(what["stored"])
    step = 1
    if crc is None:
        step = 2
    else:
        out += number(crc - 2**32 if crc >= 2**31 else crc)
    inner = number(count) + number(what["encoding"]) + number(3) + number(3)
    if what["statistics"]:
        text = varint(what["statistics"]) + b"x" * what["statistics"]
        inner += b"\x1c\x18" + text + b"\0"
    return out + bytes([(step + what["head"] - 5) << 4 | 12]) + inner + b"\0\0" + data


PAGES: dict[str, tuple[dict[str, Any], str]] = {
    "crc": ({"crc": 5}, "another CRC"), "no crc": ({"crc": None}, "without a CRC"),
    "index page": ({"kind": 1}, "type 1"), "v2": ({"kind": 3}, "type 3"),
    "dictionary": ({"kind": 2, "head": 7}, "no data page"),
    "sizes": ({"size": 13}, "two sizes"), "long": ({"size": 999, "stored": 999}, "past its column chunk"),
    "negative": ({"size": -1, "stored": -1}, "page of"), "encoding": ({"encoding": 5}, "does not list"),
    "no data header": ({"head": 7}, "data_page_header"), "header": ({"statistics": 2**16}, "past its end"),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_pages_refuse(name: str) -> None:
    """Page headers that are not as the text says are refused."""
    leaf = leaves((column("i", INT32),))[0]
    values = struct.pack("<3i", 1, -2, 3)
    for count, extra, changes, match in (
        (3, b"", {}, None), (3, b"", {"statistics": 9}, None), (3, b"x", {}, "after the values"),
        (2, b"", {}, "page of 2"), (4, b"", {}, "page of 4"),
        (3, bytes(1100), {}, "more bytes than its values"),
        (3, b"", *PAGES[name]),
    ):  # fmt: skip
        whole = page(values + extra, count, **changes)
        chunk = Chunk("f", leaf, 0, frozenset((0,)), 3, 4, len(whole))
        file = b"PAR1" + whole

        def read(start: int, size: int, file: bytes = file) -> bytes:
            """Read from memory."""
            return file[start : start + size]

        if match is None:
            found, end = read_page(chunk, read)
            assert (found.values.tolist(), end) == ([1, -2, 3], len(file))
        else:
            with pytest.raises(Refused, match=match):
                read_page(chunk, read)
