"""Sources that copy or re-encode batches of existing pools, and plans of new pools with these batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lpld_labels.codecs import Codec
from lpld_labels.format import arrow
from lpld_labels.format.manifest import LineageStep
from lpld_labels.format.records import BatchKey, check_labels
from lpld_labels.format.schema import Views
from lpld_labels.format.views import owned
from lpld_labels.io.addresses import Location
from lpld_labels.pool.packing import carried
from lpld_labels.pool.plan import BatchSource, PoolPlan, cut_by_size
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.transforms.outputs import pool_path


@dataclass(frozen=True)
class CopiedBatches:
    """Yields batches of several pools as stored. The items of a shard are keys."""

    pools: tuple[PoolReader, ...]

    def __call__(self, keys: Sequence[BatchKey]) -> Iterator[EncodedBatch]:
        for pool in self.pools:
            for key in _in_reading_order(pool, [key for key in keys if key in pool]):
                batch = pool.read_encoded(key)
                # Copy the arrays, so that row groups can be freed before the shard is written.
                payload = {
                    name: arrow.take(array, np.arange(len(array))) for name, array in batch.payload.items()
                }
                yield replace(batch, views=owned(batch.views), payload=payload)


@dataclass(frozen=True)
class EncodedBatches:
    """Yields batches of a pool with re-encoded labels. The items of a shard are keys."""

    pool: PoolReader
    codec: Codec

    def __call__(self, keys: Sequence[BatchKey]) -> Iterator[EncodedBatch]:
        for key in _in_reading_order(self.pool, keys):
            batch = self.pool.read(key)
            check_labels(batch.labels, key, batch.images, self.pool.header.label_kind)
            yield EncodedBatch.make(
                batch, self.codec.encode(batch.labels), constraints=self.pool.view_constraints
            )


def transform_plan(
    pool: PoolReader,
    out: Location,
    step: LineageStep,
    *,
    keys: Sequence[BatchKey] | None = None,
    codec: Codec | None = None,
    bytes_per_row: float = 0.0,
    views: Views | None = None,
    most_bytes: int | None = None,
) -> PoolPlan:
    """Return the plan of a new pool with batches of `pool`.

    step: new lineage step. keys: batches, in key order; None for all. codec: None to copy labels as stored.
    bytes_per_row: estimated bytes per label row in `codec`. views: None for the same as in `pool`.
    """
    keys = pool.keys if keys is None else keys
    numbers = pool.index.numbers(keys)
    rows, label_bytes = pool.index.rows[numbers], pool.index.label_bytes[numbers]
    source: BatchSource = CopiedBatches((pool,))
    content_digest = None
    if codec is None:
        content_digest = pool.digest_of(pool.index.digests(numbers))
    else:
        source, label_bytes = EncodedBatches(pool, codec), (rows * bytes_per_row).astype(np.int32)
    return PoolPlan(
        out=pool_path(out),
        header=replace(pool.header, lineage=(*pool.header.lineage, step)),
        images=pool.images,
        codec=codec or pool.codec,
        views=views or pool.manifest.views,
        source=source,
        shards=cut_by_size(keys, rows, label_bytes),
        settings={"pool": pool.manifest.content_digest},
        packed=carried(pool),
        content_digest=content_digest,
        most_bytes=most_bytes,
    )


def _in_reading_order(pool: PoolReader, keys: Sequence[BatchKey]) -> list[BatchKey]:
    """Return keys in file order, and prefetch their labels if the pool is remote."""
    ordered = pool.index.in_file_order(keys)
    pool.prefetch(pool.index.numbers(ordered).tolist())
    return ordered
