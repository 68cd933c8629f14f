"""Labels files: payload pages where the batch index says; footers and key columns for `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .batch_index import BatchEntry, LabelGroup, Shard
from .codec_base import Codec, Decoded, Part
from .errors import need
from .files import PoolFile
from .manifest import Manifest
from .pages import PLAIN, UNCOMPRESSED, WIDTHS, Chunk, Column, read_page
from .parquet import Group, Parquet
from .schema import KEYS, SLOT, Leaf, Node, leaves

KEY_COLUMNS = ("epoch", "batch", "slot")


def _list_rows(column: Column, rows: int, classes: int, file: str) -> NDArray[Any]:
    """Turn a list column with C elements in every row into an array."""
    assert column.repetition is not None
    assert column.definition is not None
    need((column.definition == 1).all(), file, "labels", "an empty list")
    shape = column.repetition.reshape(rows, classes)
    need((shape[:, 0] == 0).all() and (shape[:, 1:] == 1).all(), file, "labels", "not C values in every row")
    values: NDArray[Any] = column.values
    return values.reshape(rows, classes, *values.shape[1:])


class LabelsFile:
    """One labels file; keeps the row group it read last."""

    def __init__(self, root: Path, shard: Shard, codec: Codec, manifest: Manifest) -> None:
        """Wrap a file of which the index, which is proven, says where its payload lies."""
        self.root, self.shard, self.codec, self.manifest = root, shard, codec, manifest
        self.file, self.path = PoolFile(root, shard.labels), shard.labels.path
        self.payload = leaves(codec.nodes)
        self._group: LabelGroup | None = None
        self._columns: dict[str, Any] = {}

    def _values(self, leaf: Leaf, rows: int) -> int:
        """Give how many values a payload column has in a row group of so many rows."""
        return rows * self.manifest.classes if leaf.max_repetition else rows

    def _page(self, group: LabelGroup, leaf: Leaf, position: int) -> tuple[Any, int]:
        """Read one payload page; give the column and where the page ends."""
        rows = group.file_rows(self.codec.per_view)
        values, left = self._values(leaf, rows), group.offset + group.size - position
        if leaf.max_repetition:  # every value is there: this bounds the levels before memory is spent on them
            least = values * WIDTHS.get(leaf.physical, leaf.length)
            need(least <= left, self.path, leaf.dotted, f"{values} values do not fit into {left} bytes")
        encodings = frozenset((PLAIN,))
        chunk = Chunk(self.path, leaf, UNCOMPRESSED, encodings, values, position, left)
        column, end = read_page(chunk, self.file.read)
        if leaf.max_repetition:
            return _list_rows(column, rows, self.manifest.classes, self.path), end
        if column.definition is not None:
            return (column.values, column.definition == 1), end
        return column.values, end

    def spans(self, group: LabelGroup) -> list[tuple[int, int]]:
        """Read the payload pages of a row group; give where each begins and ends."""
        self._group, self._columns = None, {}
        position, out = group.offset, []
        for leaf in self.payload:
            self._columns[leaf.name], end = self._page(group, leaf, position)
            out.append((position, end))
            position = end
        filled = position == group.offset + group.size
        need(filled, self.path, "row group", f"bytes after the payload pages of byte {group.offset}")
        self._group = group
        return out

    def read(self, entry: BatchEntry) -> Decoded:
        """Decode the labels of one batch."""
        group = self.shard.group_of(entry)
        if group is not self._group:
            self.spans(group)
        per_view = self.codec.per_view
        first = entry.first_row - group.first_row if per_view else entry.position - group.position
        decoded = self.codec.decode(Part(self.path, self._columns, first, entry.rows))
        need(np.isfinite(decoded.labels).all(), self.path, "labels", "NaN or infinite")
        if self.manifest.label_kind == "probabilities":
            need((decoded.labels >= 0).all(), self.path, "labels", "a probability below 0")
        return decoded

    def footer(self) -> Parquet:
        """Prove and parse the footer, which `verify` compares with the index."""
        keys: tuple[Node, ...] = (*KEYS, SLOT) if self.codec.per_view else KEYS
        payload = frozenset(node.name for node in self.codec.nodes)
        nodes = (*keys, *self.codec.nodes)
        return Parquet(self.root, self.shard.labels, nodes, payload, per_row=self.manifest.classes)

    def check_footer(self, table: Parquet, entries: list[BatchEntry]) -> None:
        """Refuse row groups and key columns that are not those of the index; `entries` are the shard's."""
        numbers = [number for number, group in enumerate(table.groups) if group.rows]
        same = len(numbers) == len(self.shard.groups)
        need(same, self.path, "row groups", f"{len(numbers)}, but the index has {len(self.shard.groups)}")
        for number, known in zip(numbers, self.shard.groups, strict=True):
            group, where = table.groups[number], f"row group {number}"
            rows = known.file_rows(self.codec.per_view)
            need(group.rows == rows, self.path, where, f"{group.rows} rows, but the index has {rows}")
            self._check_spans(group, known, where)
            self._check_keys(table, number, entries[known.position : known.position + known.batches])

    def _check_spans(self, group: Group, known: LabelGroup, where: str) -> None:
        """Compare what the footer says of the payload with the pages that the index leads to."""
        spans = self.spans(known)
        for leaf, (start, end) in zip(self.payload, spans, strict=True):
            chunk = group.chunks[leaf.dotted]
            same = (chunk.start, chunk.size) == (start, end - start)
            need(same, self.path, where, f"{leaf.dotted} is not where the index says")
            values = self._values(leaf, group.rows)
            need(chunk.values == values, self.path, where, f"{leaf.dotted} has not {values} values")
            need(PLAIN in chunk.encodings, self.path, where, f"{leaf.dotted} does not list PLAIN")

    def _check_keys(self, table: Parquet, number: int, entries: list[BatchEntry]) -> None:
        """Compare the key columns of a row group with the index."""
        rows = [entry.rows if self.codec.per_view else 1 for entry in entries]
        wanted = [np.repeat([e.epoch for e in entries], rows), np.repeat([e.batch for e in entries], rows)]
        if self.codec.per_view:
            wanted.append(np.concatenate([np.arange(count) for count in rows]))
        for name, expected in zip(KEY_COLUMNS, wanted, strict=False):
            found = np.asarray(table.required(number, name))
            need(np.array_equal(found, expected), self.path, name, "not as in the index")
