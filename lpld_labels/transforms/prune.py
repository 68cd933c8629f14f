"""Making a smaller pool: plan which batches stay, then copy them as they are.

Payloads are copied without decoding, so every surviving row is bit-identical to its parent's, and
random pruning reads no label but those it keeps. An interrupted prune goes on where it stopped when
it is run again.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path

from lpld_labels.exec.job import Progress
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import index_bytes
from lpld_labels.pool.staging_plan import deciding
from lpld_labels.pool.writer import PoolWriter
from lpld_labels.transforms.destinations import unfinished_at, writes_pools
from lpld_labels.transforms.engine import (
    Draft,
    published,
    require_possible,
    same_lineage,
    stage,
)
from lpld_labels.transforms.outputs import sole_writer
from lpld_labels.transforms.prune_plan import PrunePlan, PruneSettings, plan_prune, too_small
from lpld_labels.transforms.sources import Selection

__all__ = ["PrunePlan", "PruneSettings", "plan_prune", "prune_pool", "pruned", "write_pruned"]

# A pool that leaves less than this share of its budget unused is not written again for one more batch.
_TOLERANCE = 0.001


def prune_pool(
    pool: PoolReader,
    out: str | os.PathLike[str],
    settings: PruneSettings,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write the pruned pool to `out` and return its manifest.

    overwrite: replace another pool that is there; otherwise it is refused.
    """
    require_possible(out, pool, overwrite=overwrite)
    with unfinished_at(out, pool, overwrite=overwrite) as keeper:
        plan = plan_prune(pool, settings, keeper=keeper, progress=progress)
    return write_pruned(pool, out, plan, overwrite=overwrite, progress=progress)


def pruned(pool: PoolReader, plan: PrunePlan) -> Selection:
    """Return the batches that a plan keeps."""
    step = LineageStep(
        operation="prune", parent_digest=pool.manifest.content_digest, parameters=plan.parameters()
    )
    return Selection(pool=pool, keys=pool.index.keys_at(plan.kept), step=step)


@writes_pools
def write_pruned(
    pool: PoolReader,
    out: str | os.PathLike[str],
    plan: PrunePlan,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Carry out a plan.

    A budget is met by measuring: if the staged pool is too large, or has room for more batches, the
    number of batches is corrected and the pool staged again before it is committed.

    progress: called with (done, total) batches.
    """
    path = Path(out).absolute()
    budget = plan.settings.budget
    judge = None if budget is None else _BudgetJudge(pool, plan, path, budget)
    draft = _draft(pool, plan, path)
    with sole_writer(path):
        found = published(
            path,
            lambda manifest: _made_by(plan, pool, manifest),
            purpose=draft.purpose,
            overwrite=overwrite,
        )
        if found is not None:
            return found
        writer = stage(draft, judge=judge, progress=progress)
        kept = plan if judge is None else judge.plan
        return writer.commit(lineage=pruned(pool, kept).lineage)


def _draft(pool: PoolReader, plan: PrunePlan, out: Path) -> Draft:
    purpose = deciding("prune", pool=pool.manifest.content_digest, **asdict(plan.settings))
    return pruned(pool, plan).draft(out, purpose)


def _made_by(plan: PrunePlan, pool: PoolReader, manifest: Manifest) -> bool:
    """Whether a pool is what the plan makes of its parent, up to what a budget left room for."""
    if plan.settings.budget is not None and manifest.counts.batches <= len(plan.candidates):
        plan = plan.resized(manifest.counts.batches)
    selection = pruned(pool, plan)
    same_past = same_lineage(manifest.header.lineage, selection.lineage)
    return same_past and manifest.content_digest == selection.digest()


class _BudgetJudge:
    """Weighs a staged pool and corrects how many batches it has."""

    def __init__(self, pool: PoolReader, plan: PrunePlan, out: Path, budget: int) -> None:
        self.plan = plan
        self._pool, self._out, self._budget = pool, out, budget
        self._fits, self._fails = 0, len(plan.candidates) + 1

    def __call__(self, writer: PoolWriter) -> Draft | None:
        count = self.plan.count
        measured = self.plan.sizes.fixed + index_bytes(count) + writer.staged_bytes()
        spare = self._budget - measured
        if spare >= 0:
            self._fits = count
        else:
            self._fails = count
        if self._fails == 1:
            raise too_small(self.plan, measured)
        self.plan = self.plan.resized(self._next(spare))
        return None if self.plan.count == count else _draft(self._pool, self.plan, self._out)

    def _next(self, spare: int) -> int:
        """Return how many batches to try next; the same to stop."""
        if 0 <= spare < self._budget * _TOLERANCE:
            return self.plan.count
        per_batch = self.plan.estimated_bytes - self.plan.sizes.total(0, rows=0)
        wanted = self.plan.count + math.floor(spare * self.plan.count / per_batch)
        return max(self._fits, min(wanted, self._fails - 1), 1)
