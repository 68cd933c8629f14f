"""Carrying out a row of a budget plan: prune and encode in one go, without a pool in between."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from lpld_labels.codecs.fidelity import Fidelity
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Engine, Progress
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import Views
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.change_views import require_drawable
from lpld_labels.transforms.destinations import writes_pools
from lpld_labels.transforms.encode import Encoding, Rounds, refuse_lossy
from lpld_labels.transforms.engine import require_possible
from lpld_labels.transforms.plan import PlanRow
from lpld_labels.transforms.prune import PrunePlan, PruneSettings, plan_prune
from lpld_labels.transforms.sources import Selection, pruned


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What was written: its manifest and measured fidelity, and how many batches were kept."""

    manifest: Manifest
    fidelity: Fidelity
    batches: int


@writes_pools
def apply_row(
    pool: PoolReader,
    out: str | os.PathLike[str],
    row: PlanRow,
    *,
    budget: int,
    seed: int | None = None,
    views: Views | None = None,
    engine: Engine = ONE_PROCESS,
    from_lossy: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Applied:
    """Write the pool that a row describes; if it turns out larger than the budget, with fewer batches.

    views: whether it keeps its views; None to do as the pool does.
    seed: of the random order in which batches are kept; the pool's own if not given.
    """
    refuse_lossy(pool, accept=from_lossy)
    require_possible(out, pool, overwrite=overwrite)
    require_drawable(pool, views)
    encoding = Encoding(row.request, Path(out).absolute(), pool, limit=budget, views=views)
    settings = PruneSettings(ratio=1, seed=seed, keep_partial=row.keep_partial)
    plan = None if row.whole else plan_prune(pool, replace(settings, ratio=row.ratio))
    result = encoding.written(
        lambda manifest: _made(encoding, plan, budget, settings, manifest),
        lambda: _FewerBatches(encoding, plan, budget, settings),
        engine=engine,
        overwrite=overwrite,
        progress=progress,
    )
    return Applied(manifest=result.manifest, fidelity=result.fidelity, batches=result.manifest.counts.batches)


def _made(
    encoding: Encoding, plan: PrunePlan | None, budget: int, settings: PruneSettings, manifest: Manifest
) -> bool:
    """Whether a pool is what some round makes."""
    if pool_bytes(manifest) > budget:
        return False
    if plan is None and encoding.made(manifest, _selected(encoding.pool, plan)):
        return True
    ranked = _ranked(encoding.pool, plan, settings)
    if not 1 <= manifest.counts.batches <= ranked.count:
        return False
    return encoding.made(manifest, _selected(encoding.pool, ranked.resized(manifest.counts.batches)))


def _selected(pool: PoolReader, plan: PrunePlan | None) -> Selection:
    return Selection(pool=pool, keys=pool.keys) if plan is None else pruned(plan)


def _ranked(pool: PoolReader, plan: PrunePlan | None, settings: PruneSettings) -> PrunePlan:
    """Return a plan to take fewer batches from; where all were kept, one that keeps all complete ones."""
    return plan if plan is not None else plan_prune(pool, settings)


class _FewerBatches(Rounds):
    """One number of batches after the other, each less, until the pool fits."""

    def __init__(
        self, encoding: Encoding, plan: PrunePlan | None, budget: int, settings: PruneSettings
    ) -> None:
        self._plan, self._budget, self._settings = plan, budget, settings
        selection = _selected(encoding.pool, plan)
        super().__init__(encoding, selection, encoding.codec(selection, resume=False))

    def next(self, measured: int) -> bool:
        if measured <= self._budget:
            return False
        plan = _ranked(self.encoding.pool, self._plan, self._settings)
        smaller = min(int(plan.count * self._budget / measured), plan.count - 1)
        if smaller < 1:
            raise InvalidArgumentError(
                "the pool does not fit",
                where=self.encoding.out,
                expected=f"at most {self._budget} bytes",
                got=f"{measured} bytes",
            )
        self._plan = plan.resized(smaller)
        self.selection = _selected(self.encoding.pool, self._plan)
        self.codec = self.encoding.codec(self.selection, resume=False)
        return True
