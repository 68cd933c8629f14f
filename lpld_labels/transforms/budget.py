"""How many batches of a pool fit a budget.

Compressed views and Parquet's containers have no exact formula. Small pools are therefore written to a
temporary directory and weighed; for large ones an upper limit is close enough.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lpld_labels.format.records import BatchKey
from lpld_labels.pool.plan import PoolPlan
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.pipeline import run_plan

WEIGHED_BYTES, WEIGHED_BATCHES = 16 * 1024 * 1024, 2048  # Of labels and of a small pool.


@dataclass(frozen=True, eq=False)
class Scales:
    """Weighs pools made from another; reads and encodes each batch once. Use one for each codec."""

    pool: PoolReader
    _held: dict[BatchKey, EncodedBatch] = field(default_factory=dict)

    def suit(self, budget: int, estimate: int) -> bool:
        """Whether pools of about `estimate` batches within a budget are small enough to write."""
        labels = int(self.pool.index.label_bytes.sum(dtype="int64"))
        return min(budget, labels) <= WEIGHED_BYTES and estimate <= WEIGHED_BATCHES

    def weigh(self, plan_for: Callable[[Path], PoolPlan]) -> int:
        """Return the bytes of a pool. plan_for: makes the plan of a pool at a path."""
        with tempfile.TemporaryDirectory(prefix="lpld-labels-") as folder:
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
