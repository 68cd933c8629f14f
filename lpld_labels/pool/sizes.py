"""Estimate pool sizes in bytes. A pool consists of its manifest and all files that the manifest names."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.format.manifest import FileRole, Manifest
from lpld_labels.format.schema import SHARD_BATCHES, SHARD_LABEL_BYTES, SHARD_VIEW_ROWS
from lpld_labels.pool.reader import PoolReader

# Upper limits in bytes: a batch index without rows, a row of a batch index, an added lineage step, and the
# schemas and footers of a views file and a labels file.
_INDEX_FILE = 2800
_INDEX_ENTRY = 38
_PRUNE_STEP = 800
_SHARD_FILES = 7000
_MARGIN = 1.005  # Safety factor for sizes estimated in proportion to batches or rows.
_INTERPOLATIONS = 8  # Steps of a search before it bisects.
_SPREADS = 3.0  # From an estimate to its upper limit, in standard deviations.


@dataclass(frozen=True, kw_only=True)
class SizeModel:
    """Upper limit on a pool's size. All fields except `sampled` are in bytes.

    fixed: image table, packed images, codec tables and manifest. per_shard: overhead of a shard's files.
    views_per_row, labels_per_row: size per row, with a share of the container. sampled: number of batches
    that were measured. spread: standard deviation of labels_per_row between these batches.
    per_incomplete: extra size of an incomplete batch.
    """

    fixed: int
    per_shard: float
    views_per_row: float
    labels_per_row: float
    spread: float = 0.0
    sampled: int = 1
    per_incomplete: int = 0

    def labels(self, batches: int, rows: int) -> float:
        error = self.spread * rows / max(batches, 1) * math.sqrt(batches + batches**2 / self.sampled)
        return self.labels_per_row * rows + _SPREADS * error

    def total(self, batches: int, rows: int, *, incomplete: int = 0) -> int:
        """Return the upper limit on the pool's size. incomplete: how many of the batches are incomplete."""
        labels = self.labels(batches, rows) + self.per_incomplete * incomplete
        shards = self.per_shard * _shards(labels, rows, batches)
        return math.ceil(self.fixed + _index_bytes(batches) + shards + labels + self.views_per_row * rows)


def part_bytes(pool: PoolReader, numbers: npt.NDArray[np.integer[Any]]) -> int:
    """Return an upper limit in bytes for a pool with only the batches `numbers`. Reads no shard files."""
    index, manifest = pool.index, pool.manifest
    count, rows = len(numbers), int(index.rows[numbers].sum(dtype=np.int64))
    labels = int(index.label_bytes[numbers].sum(dtype=np.int64))
    # All other bytes of shard files: containers and views.
    others = _bytes_of(manifest, "labels", "views") - int(index.label_bytes.sum(dtype=np.int64))
    share = max(count / max(len(index), 1), rows / max(manifest.counts.rows, 1))
    shards = _shards(labels, rows, count)
    part = others * share * _MARGIN + _SHARD_FILES * shards
    if shards <= len(manifest.files_of("labels")):
        part = min(part, others)
    fixed = _bytes_of(manifest, "images", "codec", "packed") + len(manifest.dump()) + _PRUNE_STEP
    entries = min(_bytes_of(manifest, "batches"), _index_bytes(count))
    return math.ceil(fixed + entries + labels + part)


def pool_bytes(manifest: Manifest) -> int:
    """Return the size of a pool in bytes: all files in the manifest, and the manifest itself."""
    return sum(entry.bytes for entry in manifest.files) + len(manifest.dump())


def most_within(budget: int, most: int, weight: Callable[[int], int], *, start: int = 0) -> tuple[int, int]:
    """Return (n, weight(n)) for the largest n <= `most` with weight(n) <= `budget`.

    If weight(1) exceeds the budget, return (0, weight(1)). weight: almost linear. start: first guess of n.
    """
    fits, fails, rounds, before = 0, most + 1, 0, (0, 0)
    count, least = min(start or (most + 1) // 2, most), 0
    while fails - fits > 1:
        size = weight(count)
        if size <= budget:
            fits, least = count, size
        else:
            fails, least = count, least if fits else size
        slope = max((size - before[1]) / (count - before[0]), 1)
        aim = count + math.floor((budget - size) / slope) if rounds < _INTERPOLATIONS else (fits + fails) // 2
        before, rounds = (count, size), rounds + 1
        count = min(max(aim, fits + 1), fails - 1)
    return fits, least


def _shards(labels: float, rows: int, batches: int) -> int:
    filled = max(labels / SHARD_LABEL_BYTES, rows / SHARD_VIEW_ROWS, batches / SHARD_BATCHES)
    return math.floor(filled) + 1


def _index_bytes(batches: int) -> int:
    return _INDEX_FILE + _INDEX_ENTRY * batches


def _bytes_of(manifest: Manifest, *roles: FileRole) -> int:
    return sum(entry.bytes for role in roles for entry in manifest.files_of(role))
