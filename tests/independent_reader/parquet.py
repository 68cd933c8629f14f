"""One Parquet file of a pool: its footer is proven before it is parsed, its chunks are bounded."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import Refused, need
from .files import FileEntry, PoolFile
from .pages import ENCODINGS, MAX_PAGE, PLAIN, RLE, UNCOMPRESSED, ZSTD, Chunk, Column, read_chunk
from .schema import BYTES, Leaf, Node, check_schema, leaves
from .thrift import Compact, Struct, ThriftError, child, integer, integers, optional_integer, structs

MAX_GROUP_ROWS = 2**20
MAX_LIST_VALUES = 2**24


@dataclass(frozen=True)
class Group:
    """One row group: where its rows lie in the file, and its chunks by leaf."""

    first: int
    rows: int
    chunks: dict[str, Chunk]


class Parquet:
    """A file with a proven footer and a checked schema; reads chunks of row groups."""

    def __init__(
        self,
        root: Path,
        entry: FileEntry,
        nodes: tuple[Node, ...],
        payload: frozenset[str] = frozenset(),
        per_row: int = 1,
        max_string: int = MAX_PAGE,
    ) -> None:
        """Prove and parse the footer. `payload` names columns that are PLAIN and not compressed."""
        self.entry = entry
        self._file = PoolFile(root, entry)
        self.payload = payload
        self.per_row = per_row
        self.max_string = max_string
        self.leaves = leaves(nodes)
        assert entry.footer_bytes is not None
        raw = self._file.read(entry.body, entry.footer_bytes)
        found = hashlib.sha256(raw).hexdigest()
        need(found == entry.footer_digest, entry.path, "footer_digest", "the footer has another SHA-256")
        need(raw[-4:] == b"PAR1", entry.path, "footer", "does not end in PAR1")
        size = int.from_bytes(raw[-8:-4], "little")
        need(size + 8 == entry.footer_bytes, entry.path, "footer_bytes", "is not the footer's own length")
        need(self._file.read(0, 4) == b"PAR1", entry.path, "header", "does not begin with PAR1")
        try:
            self.groups = self._parse(Compact(raw[:-8]), nodes)
        except ThriftError as error:
            raise Refused(entry.path, "footer", str(error)) from error

    def _parse(self, cursor: Compact, nodes: tuple[Node, ...]) -> list[Group]:
        """Check the footer's metadata against the schema, the manifest and the file's size."""
        path = self.entry.path
        meta = cursor.struct()
        need(cursor.position == len(cursor.data), path, "footer", "bytes after the metadata")
        need(8 not in meta and 9 not in meta, path, "footer", "encrypted")
        check_schema(structs(meta, 2, "schema"), nodes, path)
        need(integer(meta, 3, "num_rows") == self.entry.rows, path, "rows", "the footer has another number")
        groups: list[Group] = []
        first = 0
        spans: list[tuple[int, int]] = []
        for number, raw in enumerate(structs(meta, 4, "row_groups")):
            rows = integer(raw, 3, "row group's num_rows")
            need(0 <= rows <= MAX_GROUP_ROWS, path, f"row group {number}", f"{rows} rows")
            columns = structs(raw, 1, "columns")
            need(len(columns) == len(self.leaves), path, f"row group {number}", "another number of columns")
            pairs = zip(self.leaves, columns, strict=True)
            chunks = {leaf.dotted: self._chunk(leaf, column, rows) for leaf, column in pairs}
            spans += [(chunk.start, chunk.start + chunk.size) for chunk in chunks.values()]
            groups.append(Group(first, rows, chunks))
            first += rows
        need(first == self.entry.rows, path, "rows", "row groups do not add up")
        spans.sort()
        for (_, stop), (start, _) in pairwise(spans):
            need(stop <= start, path, "footer", "column chunks overlap")
        return groups

    def _chunk(self, leaf: Leaf, column: Struct, rows: int) -> Chunk:
        """Check what the footer says of one column chunk."""
        path, field = self.entry.path, f"column {leaf.dotted}"
        need(not column.keys() & {1, 8, 9}, path, field, "encrypted or in another file")
        meta = child(column, 3, "column metadata")
        need(not meta.keys() & {10}, path, field, "an index page")
        need(integer(meta, 1, "type") == leaf.physical, path, field, "another physical type")
        names = meta.get(3)
        need(names == [part.encode() for part in leaf.path], path, field, "another path in the schema")
        encodings = frozenset(integers(meta, 2, "encodings"))
        need(encodings <= ENCODINGS, path, field, f"encodings {sorted(encodings - ENCODINGS)}")
        codec = integer(meta, 4, "codec")
        need(codec in (UNCOMPRESSED, ZSTD), path, field, f"compression {codec}")
        values = integer(meta, 5, "num_values")
        most = rows * (self.per_row if leaf.max_repetition else 1)
        if leaf.max_repetition and not self.payload:
            most = min(most, MAX_LIST_VALUES)
        need(rows <= values <= most, path, field, f"{values} values for {rows} rows")
        size = integer(meta, 7, "total_compressed_size")
        data = integer(meta, 9, "data_page_offset")
        dictionary = optional_integer(meta, 11, "dictionary_page_offset")
        if values == 0:  # writers leave the offset 0 where there is no data page
            data = dictionary if dictionary is not None else data if size else 4
        start = data if dictionary is None else dictionary
        need(start <= data < start + max(size, 1), path, field, "data page outside of its chunk")
        need(
            size >= 0 and start >= 4 and start + size <= self.entry.body,
            path,
            field,
            "chunk outside of the file",
        )
        if leaf.physical == BYTES:
            need(dictionary is None, path, field, "a dictionary of byte strings")
        if leaf.name in self.payload or leaf.dotted in self.payload:
            need(codec == UNCOMPRESSED, path, field, "compressed payload")
            need(dictionary is None and encodings <= {PLAIN, RLE}, path, field, "payload that is not PLAIN")
        return Chunk(
            path, leaf, codec, encodings, values, start, size, dictionary is not None, self.max_string,
            may_be_empty=self.entry.rows == 0, plain=integer(meta, 6, "total_uncompressed_size"),
        )  # fmt: skip

    def check_growth(self) -> None:
        """Refuse a table that is far larger than its file."""
        total = sum(chunk.plain or 0 for group in self.groups for chunk in group.chunks.values())
        need(
            total <= 2**27 + 64 * self.entry.bytes, self.entry.path, "footer", "far more than the file holds"
        )

    def group_of(self, first: int, rows: int) -> int:
        """Find the row group that holds these rows, all of them."""
        number = bisect_right(self.groups, first, key=lambda group: group.first) - 1
        stop = self.groups[number].first + self.groups[number].rows if number >= 0 else 0
        need(number >= 0 and first < stop, self.entry.path, "rows", f"no row group holds row {first}")
        need(first + rows <= stop, self.entry.path, "row groups", "a batch is split over row groups")
        return number

    def column(self, group: int, name: str) -> Column:
        """Prove and decode one column of a row group."""
        chunk = self.groups[group].chunks[name]
        return read_chunk(chunk, self._file.read)

    def required(self, group: int, name: str) -> Any:
        """Read a column that is never null and not a list."""
        return self.column(group, name).values

    def nullable(self, group: int, name: str) -> tuple[Any, NDArray[np.bool_]]:
        """Read an optional column: the values that are there, and which rows have one."""
        column = self.column(group, name)
        assert column.definition is not None
        return column.values, column.definition == 1

    def component_bytes(self) -> dict[str, int]:
        """Sum the bytes of column chunks by top-level column."""
        out: dict[str, int] = {}
        for group in self.groups:
            for chunk in group.chunks.values():
                out[chunk.leaf.name] = out.get(chunk.leaf.name, 0) + chunk.size
        return out
