"""Carrying out a row of a budget plan: prune and encode in one go, without a pool in between."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from lpld_labels.codecs.fidelity import Fidelity
from lpld_labels.format.digests import content_digest
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.pool.reader import PoolReader
from lpld_labels.rewriting.encode import BudgetExceededError, encode_pool
from lpld_labels.rewriting.plan import PlanRow
from lpld_labels.rewriting.prune import PrunePlan, PruneSettings, plan_prune

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What was written: its manifest and measured fidelity, and how many batches were kept."""

    manifest: Manifest
    fidelity: Fidelity
    batches: int


def apply_row(
    pool: PoolReader,
    out: str | os.PathLike[str],
    row: PlanRow,
    *,
    budget: int,
    seed: int | None = None,
    jobs: int = 1,
    force: bool = False,
    progress: Progress | None = None,
) -> Applied:
    """Write the pool that a row describes; if it turns out larger than the budget, with fewer batches.

    seed: of the random order in which batches are kept; the pool's own if not given.
    """
    plan = None if row.whole else plan_prune(pool, PruneSettings(ratio=row.ratio, seed=seed))
    while True:
        try:
            result = encode_pool(
                pool,
                out,
                row.request,
                keys=None if plan is None else [pool.index.key(place) for place in plan.kept.tolist()],
                lineage=None if plan is None else (*pool.header.lineage, _prune_step(pool, plan)),
                parent_digest=None if plan is None else _pruned_digest(pool, plan),
                at_most=budget,
                jobs=jobs,
                force=force,
                progress=progress,
            )
        except BudgetExceededError as error:
            if plan is None:
                plan = plan_prune(pool, PruneSettings(ratio=1, seed=seed))
            smaller = min(int(plan.count * budget / error.measured), plan.count - 1)
            if smaller < 1:
                raise
            plan = plan.resized(smaller)
        else:
            return Applied(
                manifest=result.manifest, fidelity=result.fidelity, batches=result.manifest.counts.batches
            )


def _prune_step(pool: PoolReader, plan: PrunePlan) -> LineageStep:
    return LineageStep(
        operation="prune", parent_digest=pool.manifest.content_digest, parameters=plan.parameters()
    )


def _pruned_digest(pool: PoolReader, plan: PrunePlan) -> str:
    """Return the content digest that the pruned pool would have had before it was encoded."""
    return content_digest(
        classes=pool.classes,
        label_kind=pool.header.label_kind,
        codec_identity=pool.codec.identity(),
        images_digest=pool.images.digest(),
        batch_digests=[pool.index.digest(place) for place in plan.kept.tolist()],
    )
