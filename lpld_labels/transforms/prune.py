"""Prune a pool: choose which batches stay, then copy them as stored.

Payloads are copied without decoding, so every row is bit-identical to its parent's, and random pruning reads
only the labels it keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.records import BatchKey
from lpld_labels.io.addresses import Location
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import most_within, part_bytes
from lpld_labels.transforms import lineage
from lpld_labels.transforms.batch_sources import transform_plan
from lpld_labels.transforms.pipeline import finished_before, require_output, run_plan
from lpld_labels.transforms.remote_output import writes_pools
from lpld_labels.transforms.selection import Places, Scores, choose, kept_count, score_batches
from lpld_labels.transforms.settings import PruneSettings


@dataclass(frozen=True, kw_only=True, eq=False)
class PrunePlan:
    """Which batches stay.

    candidates, kept: numbers in the pool's index, in key order. scores: of the candidates, high is easy.
    """

    pool: PoolReader
    settings: PruneSettings
    seed: int
    candidates: Places
    scores: Scores | None
    kept: Places

    @property
    def count(self) -> int:
        return len(self.kept)

    @property
    def keys(self) -> list[BatchKey]:
        """The batches that stay, in key order."""
        return self.pool.index.keys_at(self.kept)

    @property
    def rows(self) -> int:
        """Number of views that stay."""
        return int(self.pool.index.rows[self.kept].sum(dtype=np.int64))

    @property
    def most_bytes(self) -> int:
        """Upper limit of the new pool's size."""
        return part_bytes(self.pool, self.kept)

    def resized(self, count: int) -> PrunePlan:
        """Return the plan that keeps another number of batches."""
        index, settings = self.pool.index, self.settings
        return replace(self, kept=choose(index, self.candidates, self.scores, count, settings, self.seed))

    @property
    def results(self) -> dict[str, Any]:
        """What lineage records in addition to the settings."""
        return {
            "random_seed": self.seed,
            "kept_batches": self.count,
            "candidate_batches": len(self.candidates),
        }


def plan_prune(pool: PoolReader, settings: PruneSettings, *, progress: Progress | None = None) -> PrunePlan:
    """Decide which batches stay. Random choice needs no byte of labels; metrics read them all once.

    Only complete batches are candidates, unless there are none.
    progress: called with (done, total) batches while metrics are computed.
    """
    index = pool.index
    candidates = np.flatnonzero(index.rows == pool.header.batch_size)
    if not len(candidates):
        candidates = np.arange(len(index))
    by_metric = settings.by != "random"
    plan = PrunePlan(
        pool=pool,
        settings=settings,
        seed=settings.seed if settings.seed is not None else pool.header.seed or 0,
        candidates=candidates,
        scores=score_batches(pool, candidates, settings.by, progress) if by_metric else None,
        kept=candidates,
    )
    if settings.ratio is not None:
        return plan.resized(kept_count(len(candidates), settings.ratio))
    budget = settings.budget or 0
    fitting = most_within(budget, len(candidates), lambda count: plan.resized(count).most_bytes)
    if fitting == 0:
        raise InvalidArgumentError(
            "budget is too small for even one batch",
            expected=f"at least {plan.resized(1).most_bytes} bytes",
            got=f"{budget} bytes",
            hint="that is one batch with the image table, codec tables and manifest",
        )
    return plan.resized(fitting)


@writes_pools
def prune_pool(
    pool: PoolReader,
    out: Location,
    settings: PruneSettings,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write the pruned pool to `out` and return its manifest.

    overwrite: replace another pool that is there; otherwise it is refused.
    progress: called with (done, total) batches scored, then copied.
    """
    step = lineage.step("prune", pool.manifest.content_digest, settings)
    require_output(out, pool.location, overwrite=overwrite, step=step)
    found = finished_before(out, step)
    if found is not None:
        return found
    plan = plan_prune(pool, settings, progress=progress)
    return write_pruned(plan, out, overwrite=overwrite, progress=progress)


@writes_pools
def write_pruned(
    plan: PrunePlan,
    out: Location,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write the pool of a plan. progress: called with (done, total) batches copied."""
    pool, settings = plan.pool, plan.settings
    step = lineage.step("prune", pool.manifest.content_digest, settings, **plan.results)
    pool_plan = transform_plan(pool, out, step, keys=plan.keys, most_bytes=settings.budget)
    return run_plan(pool_plan, overwrite=overwrite, progress=progress)
