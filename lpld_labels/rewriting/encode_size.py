"""What a pool will weigh in another codec: a few of its batches are written for real and weighed.

Parquet files cost something per file, per row group and per batch; writing labels of n and then 2n batches
tells these apart from what grows with the pool. Views stay as they are, so they weigh what they weighed.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lpld_labels.codecs import Codec
from lpld_labels.format.manifest import to_json
from lpld_labels.format.records import BatchKey, LabelBatch
from lpld_labels.format.schema import SHARD_LABEL_BYTES, SHARD_VIEW_ROWS
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch, load_sealed, seal_shard
from lpld_labels.pool.sizes import index_bytes
from lpld_labels.pool.staging import StagingArea

WEIGHED_BATCHES = 16
WEIGHED_ROWS = 4096
_TWO_STEPS = 2500
"""Two steps of lineage in the manifest, at their largest."""
_TABLE_ENTRY = 200
"""A file's entry in the manifest."""


@dataclass(frozen=True, kw_only=True)
class EncodedSize:
    """Bytes of a pool in some codec.

    fixed: image table, codec tables, manifest. per_shard: of a labels file, whatever it holds.
    views_per_batch, labels_per_batch: of a full batch, its share of the container included.
    batch_size: rows of a full batch.
    """

    fixed: int
    per_shard: float
    views_per_batch: float
    labels_per_batch: float
    batch_size: int

    def total(self, batches: int) -> int:
        """Return the bytes of a pool of so many full batches."""
        labels = self.labels_per_batch * batches
        shards = max(labels / SHARD_LABEL_BYTES, batches * self.batch_size / SHARD_VIEW_ROWS)
        files = self.per_shard * (math.floor(shards) + 1)
        return math.ceil(self.fixed + index_bytes(batches) + files + labels + self.views_per_batch * batches)

    def batches_within(self, budget: int, most: int) -> int:
        """Return how many full batches, up to `most`, fit into a budget in bytes."""
        fits, fails = 0, most + 1
        while fails - fits > 1:
            middle = (fits + fails) // 2
            fits, fails = (middle, fails) if self.total(middle) <= budget else (fits, middle)
        return fits


def weigh(pool: PoolReader, codec: Codec, keys: Sequence[BatchKey]) -> EncodedSize:
    """Weigh a codec on some batches of a pool; `keys` are where to take them from."""
    size = pool.header.batch_size
    count = max(1, min(WEIGHED_BATCHES, WEIGHED_ROWS // size))
    # Full batches first: they are what is asked about.
    chosen = sorted(keys, key=lambda key: -pool.index.rows_of(key))[:count]
    batches = [pool.read(chosen[place % len(chosen)]) for place in range(count)]
    once = _labels_file(batches, codec)
    per_row = (_labels_file(batches * 2, codec) - once) / sum(batch.rows for batch in batches)
    views = sum(entry.bytes for entry in pool.manifest.files_of("views"))
    return EncodedSize(
        fixed=fixed_bytes(pool, codec),
        per_shard=max(once - per_row * sum(batch.rows for batch in batches), 0),
        views_per_batch=views / pool.manifest.counts.rows * size,
        labels_per_batch=per_row * size,
        batch_size=size,
    )


def fixed_bytes(pool: PoolReader, codec: Codec) -> int:
    """Return the bytes of the new pool that do not depend on how many batches it has."""
    manifest = pool.manifest
    images = sum(entry.bytes for entry in manifest.files_of("images"))
    tables = sum(len(table) + _TABLE_ENTRY for table in codec.tables().values())
    described = len(manifest.dump()) + len(to_json(codec.parameters())) + _TWO_STEPS
    return images + tables + described


def staged_bytes(pool: PoolReader, codec: Codec, out: Path, batches: int) -> int:
    """Return the bytes of the pool that waits in `out` to be committed, at most a little too high."""
    shards = StagingArea(out).sealed()
    files = sum(shard.views_bytes + shard.labels_bytes for shard in shards)
    return fixed_bytes(pool, codec) + index_bytes(batches) + files


def _labels_file(batches: Sequence[LabelBatch], codec: Codec) -> int:
    """Return the bytes of a labels file that holds the batches."""
    encoded = [
        EncodedBatch.make(replace(batch, key=BatchKey(0, number)), codec.encode(batch.labels))
        for number, batch in enumerate(batches)
    ]
    with tempfile.TemporaryDirectory() as folder:
        name = seal_shard(Path(folder), encoded, codec, batches[0].classes)
        return load_sealed(Path(folder) / name).labels_bytes
