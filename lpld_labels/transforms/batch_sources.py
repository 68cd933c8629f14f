"""Sources of batches that lie in pools: as they are stored, or encoded anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lpld_labels.codecs import Codec
from lpld_labels.format import arrow
from lpld_labels.format.records import BatchKey
from lpld_labels.format.views import owned
from lpld_labels.pool.plan import Shard, cut_by_size
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch


@dataclass(frozen=True)
class CopiedBatches:
    """Batches of a pool as they are stored; items are keys."""

    pool: PoolReader

    def __call__(self, keys: Sequence[BatchKey]) -> Iterator[EncodedBatch]:
        for key in in_reading_order(self.pool, keys):
            yield _detached(self.pool.read_encoded(key))


@dataclass(frozen=True)
class EncodedBatches:
    """Batches of a pool, their labels decoded and encoded again; items are keys."""

    pool: PoolReader
    codec: Codec

    def __call__(self, keys: Sequence[BatchKey]) -> Iterator[EncodedBatch]:
        for key in in_reading_order(self.pool, keys):
            batch = self.pool.read(key)
            yield EncodedBatch.make(
                batch, self.codec.encode(batch.labels), constraints=self.pool.view_constraints
            )


def in_reading_order(pool: PoolReader, keys: Sequence[BatchKey]) -> list[BatchKey]:
    """Return keys in the order of their files, and let the pool fetch those that are elsewhere ahead."""
    ordered = pool.index.in_file_order(keys)
    pool.prefetch(pool.index.numbers(ordered).tolist())
    return ordered


def copied_shards(pool: PoolReader, keys: Sequence[BatchKey]) -> list[Shard]:
    """Cut batches of a pool, in key order, into shards as large as they are stored."""
    ordered = sorted(keys)
    numbers = pool.index.numbers(ordered)
    return cut_by_size(ordered, pool.index.rows[numbers], pool.index.label_bytes[numbers])


def encoded_shards(pool: PoolReader, keys: Sequence[BatchKey], bytes_per_row: float) -> list[Shard]:
    """Cut batches of a pool, in key order, into shards as large as they will be in another codec.

    bytes_per_row: of labels there, about.
    """
    ordered = sorted(keys)
    rows = pool.index.rows[pool.index.numbers(ordered)]
    return cut_by_size(ordered, rows, (rows * bytes_per_row).astype(np.int64))


def _detached(batch: EncodedBatch) -> EncodedBatch:
    """Return a batch that owns its memory.

    What a reader gives points into row groups of up to hundreds of batches; keeping a few batches
    of each until a shard is full must not keep the groups.
    """
    payload = {name: _owned(array) for name, array in batch.payload.items()}
    return replace(batch, views=owned(batch.views), payload=payload)


def _owned(array: arrow.Array) -> arrow.Array:
    return arrow.take(array, np.arange(len(array)))
