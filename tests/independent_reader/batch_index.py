"""The batch index: proven by its SHA-256, in order, and in agreement with the manifest."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .errors import need
from .files import FileEntry, PoolFile
from .manifest import NAME, Manifest
from .parquet import MAX_GROUP_ROWS, Parquet
from .schema import BATCHES

_NUMBERS = (
    "epoch",
    "batch",
    "rows",
    "shard",
    "position",
    "first_row",
    "group_offset",
    "group_bytes",
    "label_bytes",
)


@dataclass(frozen=True)
class BatchEntry:
    """One row of the index."""

    epoch: int
    batch: int
    rows: int
    shard: int
    position: int
    first_row: int
    group_offset: int
    group_bytes: int
    label_bytes: int
    mix_strength: float | None
    views_digest: bytes
    digest: bytes

    @property
    def key(self) -> tuple[int, int]:
        """Give (epoch, batch)."""
        return self.epoch, self.batch


@dataclass
class LabelGroup:
    """One row group of a labels file as the index knows it: its payload's bytes and its batches."""

    offset: int
    size: int
    position: int  # of its first batch
    first_row: int
    batches: int = 0
    rows: int = 0  # views
    label_bytes: int = 0  # of its batches

    def file_rows(self, per_view: bool) -> int:
        """Give how many rows the group has in the file."""
        return self.rows if per_view else self.batches

    def file_first(self, per_view: bool) -> int:
        """Give the group's first row in the file."""
        return self.first_row if per_view else self.position


@dataclass
class Shard:
    """What the index says of one shard; grows while the index is read in key order."""

    labels: FileEntry
    batches: int = 0
    rows: int = 0
    groups: list[LabelGroup] = field(default_factory=list)

    def add(self, item: BatchEntry, file: str) -> None:
        """Take the next batch: positions and rows count up, row groups follow each other."""
        need(item.position == self.batches, file, "position", f"{item.position} at {item.key}")
        need(item.first_row == self.rows, file, "first_row", f"{item.first_row} at {item.key}")
        last = self.groups[-1] if self.groups else None
        if last is None or (item.group_offset, item.group_bytes) != (last.offset, last.size):
            start = 4 if last is None else last.offset + last.size
            fits = start <= item.group_offset <= self.labels.body - item.group_bytes and item.group_bytes > 0
            where = f"{item.group_bytes} bytes from {item.group_offset} at {item.key}"
            need(fits, file, "group_offset, group_bytes", f"{where} overlap or are not in the file's body")
            last = LabelGroup(item.group_offset, item.group_bytes, item.position, item.first_row)
            self.groups.append(last)
        last.batches += 1
        last.label_bytes += item.label_bytes
        last.rows += item.rows
        self.batches += 1
        self.rows += item.rows

    def group_of(self, item: BatchEntry) -> LabelGroup:
        """Find a batch's row group."""
        return self.groups[bisect_right(self.groups, item.position, key=lambda group: group.position) - 1]


@dataclass(frozen=True)
class Index:
    """All batches in key order, and the shards they lie in."""

    entries: list[BatchEntry]
    shards: list[Shard]


def _rows(table: Parquet, group: int) -> list[BatchEntry]:
    """Decode one row group of the index."""
    columns: list[Any] = [np.asarray(table.required(group, name)).tolist() for name in _NUMBERS]
    found, there = table.nullable(group, "mix_strength")
    strengths = iter(np.asarray(found).tolist())
    mixed: list[Any] = [next(strengths) if flag else None for flag in there]
    views = [row.tobytes() for row in table.required(group, "views_digest")]
    digests = [row.tobytes() for row in table.required(group, "digest")]
    rows: Any = zip(*columns, mixed, views, digests, strict=True)
    return [BatchEntry(*row) for row in rows]


def _check_counts(manifest: Manifest, index: Index) -> None:
    """Refuse counts and rows of views files that are not the index's."""
    counts, entries = manifest.counts, index.entries
    found = (
        ("epochs", counts.epochs, len({entry.epoch for entry in entries})),
        ("batches", counts.batches, len(entries)),
        ("incomplete_batches", counts.incomplete_batches, sum(e.rows < manifest.batch_size for e in entries)),
        ("rows", counts.rows, sum(entry.rows for entry in entries)),
    )
    for name, claimed, real in found:
        need(claimed == real, NAME, f"counts.{name}", f"{claimed}, but the index has {real}")
    for shard, views in zip(index.shards, manifest.of_role("views"), strict=False):
        need(views.rows == shard.rows, views.path, "rows", "not those of the index")


def _check_drawn(manifest: Manifest, item: BatchEntry, file: str) -> None:
    """Refuse a batch that no epoch of these images has, and a strength where there is none to use."""
    strength = item.mix_strength
    mixed = manifest.drawn and manifest.augmentation.mix != "none"
    need((strength is not None) == mixed, file, "mix_strength", f"null or not at {item.key}")
    fits = strength is None or (0 <= strength <= 1 and math.copysign(1, strength) == 1)
    need(fits, file, "mix_strength", f"{strength} at {item.key}")
    if manifest.drawn:
        left = manifest.counts.images - item.batch * manifest.batch_size
        need(left > 0, file, "batch", f"no epoch has batch {item.batch}")
        wanted = min(left, manifest.batch_size)
        need(item.rows == wanted, file, "rows", f"{item.rows}, but an epoch has {wanted} at {item.key}")


def read_index(root: Path, manifest: Manifest) -> Index:
    """Read the whole index in key order."""
    entry = manifest.of_role("batches")[0]
    file = entry.path
    PoolFile(root, entry).prove()
    table = Parquet(root, entry, BATCHES)
    table.check_growth()
    index = Index([], [Shard(labels) for labels in manifest.of_role("labels")])
    out, shards = index.entries, index.shards
    for number in range(len(table.groups)):
        for item in _rows(table, number):
            need(item.epoch >= 0 and item.batch >= 0, file, "epoch, batch", f"{item.key} is negative")
            need(not out or out[-1].key < item.key, file, "epoch, batch", f"{item.key} is out of order")
            need(1 <= item.rows <= manifest.batch_size, file, "rows", f"{item.rows} at {item.key}")
            need(0 <= item.shard < len(shards), file, "shard", f"{item.shard} at {item.key}")
            need(item.label_bytes >= 0, file, "label_bytes", f"{item.label_bytes} at {item.key}")
            _check_drawn(manifest, item, file)
            shards[item.shard].add(item, file)
            out.append(item)
    for group in (group for shard in shards for group in shard.groups):
        full = group.label_bytes == group.size
        need(full, file, "label_bytes", f"{group.label_bytes} in a row group of {group.size} bytes")
    _check_counts(manifest, index)
    return index


def check_label_rows(index: Index, per_view: bool) -> None:
    """Refuse labels files whose row counts are not those of their batches, and row groups too large."""
    for shard in index.shards:
        item, rows = shard.labels, shard.rows if per_view else shard.batches
        need(item.rows == rows, item.path, "rows", f"{item.rows}, but the index has {rows}")
        for group in shard.groups:
            few = group.file_rows(per_view) <= MAX_GROUP_ROWS
            need(few, item.path, "row groups", f"more than {MAX_GROUP_ROWS} rows at byte {group.offset}")
