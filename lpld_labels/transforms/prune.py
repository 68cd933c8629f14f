"""Prune a pool: choose which batches stay, then copy them as stored.

Payloads are copied without decoding: the remaining rows stay bit-identical, and random pruning reads only the
labels that it keeps.

Random order is the order of `batch_ranks`. Every order except `uniform` is a fixed sequence, and its first
batches are kept. So harder pruning keeps a subset of the batches that milder pruning keeps.

Metrics are the paper's five measures of how easy a batch is; high is easy. `cut_ratio` is the stored weight
of the view itself in its mix, 1 where nothing was mixed. The other four are computed per view, from its
logits and the class of its own image, and averaged over the views of the batch. If a pool has probabilities
p, its logits are log p, which differ from the teacher's only by a shift per row. A probability of 0 counts as
the smallest float16, 2^-24, so that averages are finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.label_semantics import as_finite_logits
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.limits import MAX_INDEX
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.random_streams import batch_ranks
from lpld_labels.format.records import BatchKey
from lpld_labels.io.addresses import Location
from lpld_labels.pool.plan import PoolPlan
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import most_within, part_bytes
from lpld_labels.transforms.batch_sources import transform_plan
from lpld_labels.transforms.budget import Scales
from lpld_labels.transforms.pipeline import lineage_step, run_plan
from lpld_labels.transforms.remote_output import writes_pools
from lpld_labels.transforms.settings import PruneSettings, require_ratio

Places = npt.NDArray[np.int64]  # [k], places in the batch index.
Scores = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Classes = npt.NDArray[np.integer]

_WHOLE_EPOCH = MAX_INDEX + 1  # Used as the batch number to rank whole epochs.


@dataclass(frozen=True, kw_only=True, eq=False)
class PrunePlan:
    """Which batches to keep. candidates, kept: batch numbers in key order. scores: per candidate, or None."""

    pool: PoolReader
    settings: PruneSettings
    seed: int
    candidates: Places
    scores: Scores | None
    kept: Places
    size: int = 0  # Bytes of the pool, if it was measured.

    @property
    def count(self) -> int:
        return len(self.kept)

    @property
    def keys(self) -> list[BatchKey]:
        return self.pool.index.keys_at(self.kept)

    @property
    def rows(self) -> int:
        return int(self.pool.index.rows[self.kept].sum(dtype=np.int64))

    @property
    def most_bytes(self) -> int:
        return self.size or part_bytes(self.pool, self.kept)

    def resized(self, count: int) -> PrunePlan:
        """Return the plan that keeps `count` batches; random order breaks ties of scores."""
        index, candidates = self.pool.index, self.candidates
        if not 1 <= count <= len(candidates):
            raise InvalidArgumentError(
                "number of batches is out of range", expected=f"1 to {len(candidates)}", got=count
            )
        # Units are ranked as a whole. A unit is a batch or an epoch.
        epochs, batches = index.epochs[candidates], index.batches[candidates]
        starts = np.arange(len(candidates))
        if self.settings.level == "epoch":
            epochs, starts = np.unique(epochs, return_index=True)
            batches = np.full(len(epochs), _WHOLE_EPOCH)
        sizes = np.diff(starts, append=len(candidates))
        columns: list[npt.NDArray[Any]] = [batches, epochs, batch_ranks(self.seed, epochs, batches)]
        if self.scores is not None:
            rows = index.rows[candidates]
            columns.append(np.add.reduceat(self.scores * rows, starts) / np.add.reduceat(rows, starts))
        order = np.lexsort(columns)
        if self.settings.prefer == "easy":
            order = order[::-1]
        elif self.settings.prefer == "uniform":
            order = _evenly_spaced(order, sizes, count)
        chosen = sizes[order]
        offsets = np.repeat(starts[order] - (np.cumsum(chosen) - chosen), chosen)
        members = offsets + np.arange(len(offsets))
        return replace(self, kept=np.sort(candidates[members[:count]]), size=0)

    @property
    def results(self) -> dict[str, Any]:
        """What lineage records in addition to the settings."""
        return {
            "random_seed": self.seed,
            "kept_batches": self.count,
            "candidate_batches": len(self.candidates),
        }


def plan_prune(pool: PoolReader, settings: PruneSettings, *, progress: Progress | None = None) -> PrunePlan:
    """Choose the batches to keep: complete ones, if there are any. Labels are read only for metrics."""
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
    fitting, size = most_within(budget, len(candidates), lambda count: plan.resized(count).most_bytes)
    scales = Scales(pool)
    if scales.suit(budget, fitting):

        def weight(count: int) -> int:
            return scales.weigh(_pool_plan(plan.resized(count), Path()))

        fitting, size = most_within(budget, len(candidates), weight, start=fitting)
    if fitting == 0:
        raise too_small(budget, size)
    return replace(plan.resized(fitting), size=size)


def too_small(budget: int, least: int) -> InvalidArgumentError:
    """Return the error for a budget below `least`, the size in bytes of a pool of one batch."""
    return InvalidArgumentError(
        "budget is too small for even one batch",
        expected=f"at least {least + 20} bytes",  # Lineage records the budget's digits.
        got=f"{budget} bytes",
        hint="that is one batch with the image table, codec tables and manifest",
    )


@writes_pools
def write_pruned(
    plan: PrunePlan,
    out: Location,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write the pool of a plan. progress: called with (done, total) batches copied."""
    return run_plan(_pool_plan(plan, out), overwrite=overwrite, progress=progress)


def _pool_plan(plan: PrunePlan, out: Location) -> PoolPlan:
    pool, settings = plan.pool, plan.settings
    step = lineage_step("prune", pool.manifest.content_digest, settings, **plan.results)
    return transform_plan(pool, out, step, keys=plan.keys, most_bytes=settings.budget)


def kept_count(candidates: int, ratio: float) -> int:
    """Return floor(candidates / ratio), without the rounding of floating-point division."""
    require_ratio(ratio)
    count = int(candidates / Fraction(str(ratio)))
    if count < 1:
        raise InvalidArgumentError(
            "ratio is too large for this pool: nothing would be left",
            expected=f"1 to {candidates}, the number of batches to choose from",
            got=ratio,
        )
    return count


def ratio_that_keeps(kept: int, candidates: int) -> float:
    """Return a ratio at which `kept` of the candidates stay."""
    ratio = candidates / kept
    # A quotient that was rounded up would keep one less.
    return ratio if kept_count(candidates, ratio) == kept else math.nextafter(ratio, 0)


def _evenly_spaced(order: Places, sizes: Places, count: int) -> Places:
    """Return the fewest evenly spaced units (batches or epochs) with at least `count` batches."""
    number = math.ceil(count / int(sizes.max()))
    while True:
        spaced = order[(2 * np.arange(number) + 1) * len(order) // (2 * number)]
        if int(sizes[spaced].sum()) >= count:
            return spaced
        number += 1


def correct(logits: Floats, classes: Classes) -> Floats:
    """Return 1.0 for views whose largest logit is at their own class, 0.0 for others: float32 [B]."""
    return np.asarray(logits.argmax(axis=1) == classes, np.float32)


def diff(logits: Floats, _: Classes) -> Floats:
    """Return the gap between the two largest logits: float32 [B]."""
    top = np.partition(logits, -2, axis=1)[:, -2:]
    return np.asarray(top[:, 1] - top[:, 0])


def diff_signed(logits: Floats, classes: Classes) -> Floats:
    """Return the logit of each view's own class minus the largest other logit: float32 [B]."""
    rows = np.arange(len(logits))
    others = logits.copy()
    others[rows, classes] = -np.inf
    return np.asarray(logits[rows, classes] - others.max(axis=1))


def confidence(logits: Floats, _: Classes) -> Floats:
    """Return the largest softmax value: float32 [B]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(1.0 / np.exp(shifted).sum(axis=1))


_LABEL_METRICS: Mapping[str, Callable[[Floats, Classes], Floats]] = {
    "correct": correct,
    "diff": diff,
    "diff_signed": diff_signed,
    "confidence": confidence,
}


def score_batches(pool: PoolReader, places: Places, metric: str, progress: Progress | None = None) -> Scores:
    """Return the mean metric over each batch's views: float64 [len(places)]. Reads one batch at a time."""
    score_of: dict[BatchKey, float] = {}
    keys = pool.index.keys_at(places)
    for key in pool.index.in_file_order(keys):
        views = pool.read_views(key)
        if metric == "cut_ratio":
            score_of[key] = 1.0 if views.mix is None else views.mix.strength
        else:
            logits = as_finite_logits(pool.read_labels(key, dtype=np.float32), pool.header.label_kind)
            scores = _LABEL_METRICS[metric](logits, pool.images.classes[views.images])
            score_of[key] = float(scores.mean(dtype=np.float64))
        if progress is not None:
            progress(len(score_of), len(keys))
    return np.array([score_of[key] for key in keys])
