"""Find the size of a pool before it is written, to know how many batches fit a budget.

There is no exact formula for the size of compressed views and Parquet containers. Small pools are therefore
written to a temporary directory and measured. For large pools, an upper limit is close enough.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lpld_labels.format.records import BatchKey
from lpld_labels.io.storage import write_errors
from lpld_labels.pool.plan import PoolPlan
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.pipeline import run_plan

WEIGHED_BYTES, WEIGHED_BATCHES = 16 * 1024 * 1024, 2048  # Limits on measured pools.


@dataclass(frozen=True, eq=False)
class Scales:
    """Measures the size of pools made from `pool`. Caches encoded batches, so use one object per codec."""

    pool: PoolReader
    _held: dict[BatchKey, EncodedBatch] = field(default_factory=dict)

    def suit(self, budget: int, estimate: int) -> bool:
        """Return whether pools of about `estimate` batches within a budget are small enough to measure."""
        labels = int(self.pool.index.label_bytes.sum(dtype="int64"))
        return min(budget, labels) <= WEIGHED_BYTES and estimate <= WEIGHED_BATCHES

    def weigh(self, plan_for: Callable[[Path], PoolPlan]) -> int:
        """Return the bytes of a pool. plan_for: function that returns the plan of the pool for a path."""
        place = Path(tempfile.gettempdir())
        with write_errors(place), tempfile.TemporaryDirectory(prefix="lpld-labels-", dir=place) as folder:
            plan = plan_for(Path(folder) / "pool")

            def held(keys: Sequence[BatchKey]) -> Iterator[EncodedBatch]:
                missing = [key for key in keys if key not in self._held]
                made = plan.source(missing) if missing else ()
                self._held.update((one.key, one) for one in made if isinstance(one, EncodedBatch))
                return (self._held[key] for key in keys)

            manifest = run_plan(replace(plan, source=held, packed=None, most_bytes=None))
        packed = self.pool.manifest.files_of("packed")
        components = {**manifest.components, "packed": sum(entry.bytes for entry in packed)}
        return pool_bytes(replace(manifest, files=(*manifest.files, *packed), components=components))
