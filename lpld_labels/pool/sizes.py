"""What a pool weighs: guessed before it is written, from rates per row and per file.

A pool's bytes are those of all files its manifest names, and of the manifest itself.
"""

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

# The batch index and one more step of lineage, at their largest.
_INDEX_FILE = 2800
_INDEX_ENTRY = 38
_PRUNE_STEP = 800
# Schema and footer of a views file and a labels file, whatever they hold.
_SHARD_FILES = 7000

# Estimates from rates are wrong by less than this share.
_MARGIN = 1.005


def part_bytes(pool: PoolReader, numbers: npt.NDArray[np.integer[Any]]) -> int:
    """Return the bytes that a pool of some batches of this one has at most, copied as they are stored.

    numbers: of the batches in the index. Only the manifest and the index are asked.
    """
    index, manifest = pool.index, pool.manifest
    count, rows = len(numbers), int(index.rows[numbers].sum(dtype=np.int64))
    labels = int(index.label_bytes[numbers].sum(dtype=np.int64))
    # Everything else in the files of shards: container and views.
    others = _bytes_of(manifest, "labels", "views") - int(index.label_bytes.sum(dtype=np.int64))
    share = max(count / max(len(index), 1), rows / max(manifest.counts.rows, 1))
    filled = max(labels / SHARD_LABEL_BYTES, rows / SHARD_VIEW_ROWS, count / SHARD_BATCHES)
    shards = math.floor(filled) + 1
    part = others * share * _MARGIN + _SHARD_FILES * shards
    if shards <= len(manifest.files_of("labels")):
        part = min(part, others)
    fixed = _bytes_of(manifest, "images", "codec", "packed") + len(manifest.dump()) + _PRUNE_STEP
    entries = min(_bytes_of(manifest, "batches"), index_bytes(count))
    return math.ceil(fixed + entries + labels + part)


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    """Bytes of a pool, by what they grow with.

    fixed: image table, images that the pool carries, codec tables, manifest. per_shard: of a shard's files,
    whatever they hold.
    views_per_row, labels_per_row: with their share of the container. batch_size: rows of a full batch.
    """

    fixed: int
    per_shard: float
    views_per_row: float
    labels_per_row: float
    batch_size: int

    def total(self, batches: int, *, rows: int | None = None) -> int:
        """Return the bytes of a pool of so many batches; full ones, unless their rows are given."""
        rows = batches * self.batch_size if rows is None else rows
        labels = self.labels_per_row * rows
        filled = max(labels / SHARD_LABEL_BYTES, rows / SHARD_VIEW_ROWS, batches / SHARD_BATCHES)
        shards = math.floor(filled) + 1
        views = self.views_per_row * rows
        return math.ceil(self.fixed + index_bytes(batches) + self.per_shard * shards + labels + views)


def index_bytes(batches: int) -> int:
    """Return the bytes of a batch index, at its largest."""
    return _INDEX_FILE + _INDEX_ENTRY * batches


def pool_bytes(manifest: Manifest) -> int:
    """Return the bytes of a pool: all its files and the manifest."""
    return sum(entry.bytes for entry in manifest.files) + len(manifest.dump())


def most_within(budget: int, most: int, weight: Callable[[int], int]) -> int:
    """Return the largest number up to `most` whose weight is within a budget; 0 if not even 1 is."""
    fits, fails = 0, most + 1
    while fails - fits > 1:
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if weight(middle) <= budget else (fits, middle)
    return fits


def _bytes_of(manifest: Manifest, *roles: FileRole) -> int:
    return sum(entry.bytes for role in roles for entry in manifest.files_of(role))
