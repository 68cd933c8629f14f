"""How many batches of a pool fit a budget.

Compressed views and Parquet's containers have no exact formula. Small pools are therefore written to a
temporary directory and weighed; for large ones an upper limit is close enough.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lpld_labels.format.records import BatchKey
from lpld_labels.pool.plan import BatchSource, PoolPlan
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch, Skipped
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.pipeline import run_plan

WEIGHED_BYTES, WEIGHED_BATCHES = 16 * 1024 * 1024, 2048
"""Limits of the pools that are written to weigh them: bytes of labels, batches."""
_ROUNDS = 8
"""Interpolations before bisection; a size is almost linear in the number of batches."""


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
        """Return the bytes of a pool. plan_for: takes its path."""
        with tempfile.TemporaryDirectory(prefix="lpld-labels-") as folder:
            plan = plan_for(Path(folder) / "pool")
            source = _Held(plan.source, self._held)
            manifest = run_plan(replace(plan, source=source, packed=None, most_bytes=None))
        packed = self.pool.manifest.files_of("packed")
        components = {**manifest.components, "packed": sum(entry.bytes for entry in packed)}
        return pool_bytes(replace(manifest, files=(*manifest.files, *packed), components=components))


@dataclass(frozen=True)
class _Held:
    """A source that keeps its batches; items are keys."""

    source: BatchSource
    held: dict[BatchKey, EncodedBatch]

    def __call__(self, keys: Sequence[BatchKey]) -> Iterator[EncodedBatch | Skipped]:
        missing = [key for key in keys if key not in self.held]
        if missing:
            self.held |= {one.key: one for one in self.source(missing) if isinstance(one, EncodedBatch)}
        return (self.held[key] for key in keys)


def most_that_fit(budget: int, most: int, estimate: int, weight: Callable[[int], int]) -> tuple[int, int]:
    """Return a number of batches that fits a budget while one more does not, or `most`; and its weight.

    0 if not one fits, with the weight of one.
    """
    fits, fails = 0, most + 1
    count, rounds, before = min(max(estimate, 1), most), 0, (0, 0)
    weights: dict[int, int] = {}
    while fails - fits > 1:
        size = weights[count] = weight(count)
        fits, fails = (count, fails) if size <= budget else (fits, count)
        slope = (size - before[1]) / (count - before[0])
        before, rounds = (count, size), rounds + 1
        aim = count + math.floor((budget - size) / max(slope, 1))
        if rounds > _ROUNDS:
            aim = (fits + fails) // 2
        count = min(max(aim, fits + 1), fails - 1)
    return fits, weights[fits or 1]
