"""What a pool will weigh in another codec: a few of its batches are written for real and weighed.

Parquet files cost something per file, per row group and per batch; writing labels of n and then 2n batches
tells these apart from what grows with the pool. Views mostly stay as they are and weigh what they weighed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from lpld_labels.codecs import Codec
from lpld_labels.format.records import BatchKey, LabelBatch
from lpld_labels.format.schema import Views
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.shard_files import views_file_bytes, write_labels
from lpld_labels.pool.sizes import PoolSize, encoded_fixed_bytes

WEIGHED_BATCHES = 16
WEIGHED_ROWS = 4096


def weigh(pool: PoolReader, codec: Codec, keys: Sequence[BatchKey], views: Views | None = None) -> PoolSize:
    """Weigh a codec on some batches of a pool; `keys` are where to take them from.

    views: whether the new pool keeps its views; None to do as this one does.
    """
    count = max(1, min(WEIGHED_BATCHES, WEIGHED_ROWS // pool.header.batch_size))
    # Full batches first: they are what is asked about.
    largest_first = np.argsort(-pool.index.rows_of(keys), kind="stable")
    chosen = [keys[place] for place in largest_first[:count].tolist()]
    batches = [pool.read(chosen[place % len(chosen)]) for place in range(count)]
    rows = sum(batch.rows for batch in batches)
    numbered = [replace(batch, key=BatchKey(0, number)) for number, batch in enumerate(batches * 2)]
    once = _labels_file(numbered[:count], codec)
    per_row = (_labels_file(numbered, codec) - once) / rows
    size = PoolSize.of(pool)
    kept = size.views_per_row
    if views == "drawn":
        kept = 0.0
    elif views == "stored" and pool.manifest.views == "drawn":
        kept = (views_file_bytes(numbered) - views_file_bytes(numbered[:count])) / rows
    return replace(
        size,
        fixed=encoded_fixed_bytes(pool, codec),
        per_shard=max(once - per_row * rows, 0),
        labels_per_row=per_row,
        views_per_row=kept,
    )


def _labels_file(batches: Sequence[LabelBatch], codec: Codec) -> int:
    """Return the bytes of a labels file that holds the batches."""
    encoded = [EncodedBatch.make(batch, codec.encode(batch.labels)) for batch in batches]
    sink = pa.MockOutputStream()
    write_labels(sink, encoded, [batch.rows for batch in batches], codec, batches[0].classes)
    return int(sink.size())
