"""Making a smaller pool: plan which batches stay, then copy them as they are.

Payloads are copied without decoding, so every surviving row is bit-identical to its parent's, and
random pruning reads no label but those it keeps. An interrupted prune goes on where it stopped when
it is run again.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from lpld_labels.errors import PoolConflictError, StagingMismatchError
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.format.records import ViewBatch
from lpld_labels.format.schema import MANIFEST_FILE, STAGING_DIRECTORY
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.staging import StagingArea
from lpld_labels.pool.writer import PoolWriter
from lpld_labels.rewriting.prune_plan import PrunePlan, PruneSettings, in_file_order, plan_prune, too_small

__all__ = ["PrunePlan", "PruneSettings", "plan_prune", "prune_pool", "write_pruned"]

log = logging.getLogger(__name__)
Progress = Callable[[int, int], None]

# A pool that leaves less than this share of its budget unused is not written again for one more batch.
_TOLERANCE = 0.001


def prune_pool(
    pool: PoolReader,
    out: str | os.PathLike[str],
    settings: PruneSettings,
    *,
    progress: Progress | None = None,
) -> Manifest:
    """Write the pruned pool to `out`, which must not exist, and return its manifest."""
    require_free(out)
    return write_pruned(pool, out, plan_prune(pool, settings, progress=progress), progress=progress)


def write_pruned(
    pool: PoolReader, out: str | os.PathLike[str], plan: PrunePlan, *, progress: Progress | None = None
) -> Manifest:
    """Carry out a plan.

    A budget is met by measuring: if the staged pool is too large, or has room for more batches, the
    number of batches is corrected and the pool staged again before it is committed.

    progress: called with (done, total) batches.
    """
    path = Path(out)
    require_free(path)
    fits, fails = 0, len(plan.candidates) + 1
    while True:
        writer = _stage(pool, path, plan, progress)
        if plan.settings.budget is None:
            break
        measured = plan.sizes.staged(path, plan.count)
        spare = plan.settings.budget - measured
        fits, fails = (plan.count, fails) if spare >= 0 else (fits, plan.count)
        if fails == 1:
            StagingArea(path).remove()
            raise too_small(plan, measured)
        count = _next_count(plan, spare, fits, fails)
        if count == plan.count:
            break
        log.info("%d batches take %d bytes; trying %d", plan.count, measured, count)
        StagingArea(path).remove()
        plan = plan.resized(count)
    step = LineageStep(
        operation="prune", parent_digest=pool.manifest.content_digest, parameters=plan.parameters()
    )
    return writer.commit(lineage=(*pool.header.lineage, step))


def _next_count(plan: PrunePlan, spare: int, fits: int, fails: int) -> int:
    """Return how many batches to try next, given that `fits` fit and `fails` do not; the same to stop."""
    budget = plan.settings.budget or 0
    if 0 <= spare < budget * _TOLERANCE:
        return plan.count
    per_batch = float(plan.sizes.per_batch[plan.kept].mean())
    return max(fits, min(plan.count + math.floor(spare / per_batch), fails - 1), 1)


def require_free(out: str | os.PathLike[str]) -> None:
    """Refuse a path where something lies already, unless it is a prune that was interrupted."""
    path = Path(out)
    if not path.exists():
        return
    if path.is_dir() and not (path / MANIFEST_FILE).exists():
        strangers = [entry.name for entry in sorted(path.iterdir()) if entry.name != STAGING_DIRECTORY]
        if not strangers:
            return
    what = "a pool is already here" if (path / MANIFEST_FILE).exists() else "something is already here"
    raise PoolConflictError(what, where=path, hint="choose another path")


def _stage(pool: PoolReader, out: Path, plan: PrunePlan, progress: Progress | None) -> PoolWriter:
    """Copy the planned batches into the staging area of `out`, those that are not there yet."""
    kept = plan.kept[in_file_order(pool, plan.kept)]
    keys = [pool.index.key(place) for place in kept.tolist()]
    writer = PoolWriter(out, header=pool.header, images=pool.images, codec=pool.codec)
    strangers = sorted(writer.keys - set(keys))
    if strangers:
        raise StagingMismatchError(
            f"unfinished work of another selection is here: it holds {strangers[0]}",
            where=out,
            expected="batches of this plan only",
            hint=f"finish it with its own settings, choose another path, or delete {out}",
        )
    with writer:
        for number, key in enumerate(keys):
            if key not in writer:
                writer.append_encoded(_detached(pool.read_encoded(key)))
            if progress is not None:
                progress(number + 1, len(keys))
    return writer


def _detached(batch: EncodedBatch) -> EncodedBatch:
    """Return a batch that owns its memory.

    What a reader hands out points into row groups of up to hundreds of batches; keeping a few batches
    of each until a shard is full must not keep the groups.
    """
    payload = {name: _owned(array) for name, array in batch.payload.items()}
    return EncodedBatch(views=_owned_views(batch.views), payload=payload, digest=batch.digest)


def _owned(array: pa.Array) -> pa.Array:
    return array.take(pa.array(np.arange(len(array))))


def _owned_views(views: ViewBatch) -> ViewBatch:
    mix, cutout, patches = views.mix, views.cutout, views.patch_order
    return replace(
        views,
        images=views.images.copy(),
        crops=views.crops.copy(),
        flips=views.flips.copy(),
        mix=None if mix is None else replace(mix, partner=mix.partner.copy()),
        cutout=None
        if cutout is None
        else replace(cutout, boxes=cutout.boxes.copy(), fill=cutout.fill.copy()),
        patch_order=None if patches is None else patches.copy(),
    )
