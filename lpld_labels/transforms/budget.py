"""Find the size of a pool before it is written, to know how many batches fit a budget.

There is no exact formula for the size of compressed views and Parquet containers. Small pools are therefore
made in memory and measured. For large pools, an upper limit is close enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lpld_labels.format.records import BatchKey
from lpld_labels.pool.plan import PoolPlan
from lpld_labels.pool.publish import draft_manifest
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch, write_files
from lpld_labels.pool.sizes import pool_bytes

WEIGHED_BYTES, WEIGHED_BATCHES = 16 * 1024 * 1024, 2048  # Limits on measured pools.


@dataclass(frozen=True, eq=False)
class Scales:
    """Measures the size of pools made from `pool`. Caches encoded batches, so use one object per codec."""

    pool: PoolReader
    _held: dict[BatchKey, EncodedBatch] = field(default_factory=dict)

    def suit(self, budget: int, estimate: int) -> bool:
        """Return whether pools of about `estimate` batches and `budget` bytes are small enough to measure."""
        labels = int(self.pool.index.label_bytes.sum(dtype="int64"))
        return min(budget, labels) <= WEIGHED_BYTES and estimate <= WEIGHED_BATCHES

    def weigh(self, plan: PoolPlan) -> int:
        """Return the bytes of a plan's pool. Writes no files."""
        records = []
        for shard in plan.shards:
            made = plan.source([key for key in shard.items if key not in self._held])
            self._held.update((one.key, one) for one in made if isinstance(one, EncodedBatch))
            batches = [self._held[key] for key in shard.items]
            records.append(write_files(None, batches, plan.codec, plan.header.classes, plan.views))
        return pool_bytes(draft_manifest(plan, records, self.pool.manifest.files_of("packed")))
