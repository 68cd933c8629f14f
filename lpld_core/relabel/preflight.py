"""Preflight of a build: label a few views in memory before anything is written.

So invalid settings, unusable codecs or weights and unreadable images fail at once. Also estimates the cost.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lpld_core.relabel.source import TeacherLabels, labelled
from lpld_core.settings import BuildSettings
from lpld_core.teachers.ensemble import Ensemble
from lpld_labels.errors import ComputationError, PoolWriteError
from lpld_labels.format.records import BatchKey
from lpld_labels.pool.shard import EncodedBatch, views_file_bytes
from lpld_labels.pool.sizes import SizeModel
from lpld_labels.render import ImageStore, apply_views, draw_views
from lpld_labels.transforms.selection import kept_count

VIEW_BYTES = 13.0
"""Of a stored view with the crops, flips and mixes of ImageNet-1K's recipe."""
_CHECKED_ROWS, _TIMED_ROWS = 2, 16
_LEAST_SHARE = 0.5
"""Pools compress to at least this share of the trial's bytes."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Stored bytes of a label, and a worker's seconds for it once images are decoded, from some rows."""

    rows: int = 1
    row_bytes: float = 0.0
    row_seconds: float = 1e-3


def try_out(source: TeacherLabels, ensemble: Ensemble, rows: int = _TIMED_ROWS) -> Trial:
    """Label two views as a check, then some more to measure the time."""
    augmentation, table, codec = source.header.augmentation, source.images.table, source.codec
    store = ImageStore(source.images)
    trial = Trial()
    for most in (_CHECKED_ROWS, rows):
        count = min(most, source.settings.batch_size, len(table))
        views = draw_views(augmentation, table, seed=source.settings.seed, epoch=0, batch=0, batch_size=count)
        apply_views(views, store, augmentation, inside=True)  # decodes the images
        start = time.perf_counter()
        pixels = apply_views(views, store, augmentation, inside=True)
        batch = labelled(views, ensemble.logits(pixels), codec)
        encoded = EncodedBatch.make(batch, codec.encode(batch.labels))
        seconds = time.perf_counter() - start
        if not np.isfinite(batch.labels).all():
            raise ComputationError(
                "the teacher gives labels that are not finite",
                where=", ".join(teacher.name for teacher in ensemble.descriptions),
                hint="check its weights and normalisation; labels above 65504 need --codec f32",
            )
        trial = Trial(rows=count, row_bytes=encoded.nbytes / count, row_seconds=seconds / count)
    return trial


def require_room(pool: Path, rows: int, bytes_per_row: float) -> None:
    """Refuse labels that cannot fit on the disk."""
    place = pool.absolute()
    while not place.exists():
        place = place.parent
    free, needed = shutil.disk_usage(place).free, int(_LEAST_SHARE * rows * bytes_per_row)
    if needed > free:
        raise PoolWriteError(
            "the disk has no room for these labels",
            where=os.fspath(pool),
            expected=f"at least {needed / 1e9:.3g} GB",
            got=f"{free / 1e9:.3g} GB free",
            hint="choose another disk, a smaller codec, fewer epochs or a larger --ratio",
        )


@dataclass(frozen=True, kw_only=True)
class LabelCost:
    """The cost of labelling a folder. forwards: images times teachers. final_bytes: of the pool."""

    batches: int
    views: int
    forwards: int
    final_bytes: int


def label_cost(
    settings: BuildSettings,
    *,
    images: int,
    teachers: int = 1,
    labels_per_row: float,
    views_per_row: float = VIEW_BYTES,
) -> LabelCost:
    """Return the cost of a build. labels_per_row, views_per_row: bytes."""
    epochs, batch_size = settings.epochs, settings.batch_size
    if settings.ratio == 1:
        batches, views = epochs * math.ceil(images / batch_size), epochs * images
    else:
        batches = kept_count(epochs * (images // batch_size), settings.ratio)
        views = batches * batch_size
    size = SizeModel(
        fixed=6000 + 60 * images,
        per_shard=7000,
        views_per_row=0.0 if settings.views == "drawn" else views_per_row,
        labels_per_row=labels_per_row,
    )
    final_bytes = size.total(batches, views)
    return LabelCost(batches=batches, views=views, forwards=views * teachers, final_bytes=final_bytes)


def dry_run(source: TeacherLabels, ensemble: Ensemble, wanted: Sequence[BatchKey]) -> tuple[LabelCost, Trial]:
    """Estimate the cost of a build by labelling one batch in memory."""
    trial = try_out(source, ensemble, source.settings.batch_size)
    first, second = (source.draw(key) for key in (wanted[0], wanted[-1]))
    cost = label_cost(
        source.settings,
        images=len(source.images.table),
        teachers=len(ensemble.teachers),
        labels_per_row=trial.row_bytes,
        views_per_row=(views_file_bytes([first, second]) - views_file_bytes([first])) / second.rows,
    )
    return cost, trial
