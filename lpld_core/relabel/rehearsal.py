"""A build's rehearsal: two views drawn, shown, labelled and encoded in memory, before anything is written.

Whatever is wrong with a build (ranges, a codec that does not suit the classes, weights that give no numbers,
an image that cannot be read) shows here, not in the middle of a staged pool.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from lpld_labels.codecs import Codec
from lpld_labels.errors import ComputationError, PoolWriteError
from lpld_labels.format.records import LabelBatch, ViewBatch, check_labels
from lpld_labels.format.views import labelled as with_labels
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.render import ImageStore, apply_views, draw_views

if TYPE_CHECKING:
    from lpld_core.relabel.build import Build

_ROWS = 2
_LEAST_SHARE = 0.5
"""A pool may compress to less than its rehearsal's bytes a row, but to less than half of them it does not."""


def rehearse(build: Build) -> float:
    """Label two views and encode them; return the bytes of one label."""
    settings, table, augmentation = build.settings, build.table, build.augmentation
    rows = min(_ROWS, settings.batch_size, len(table))
    views = draw_views(augmentation, table, seed=settings.seed, epoch=0, batch=0, batch_size=rows)
    pixels = apply_views(views, ImageStore(build.source), augmentation, inside=True)
    batch = labelled(views, build.ensemble.logits(pixels), build.codec)
    if not np.isfinite(batch.labels).all():
        raise ComputationError(
            "the teacher gives labels that are not finite",
            where=", ".join(teacher.name for teacher in build.ensemble.descriptions),
            hint="check its weights and normalisation; labels above 65504 need --codec f32",
        )
    return EncodedBatch.make(batch, build.codec.encode(batch.labels)).nbytes / rows


def require_room(pool: Path, rows: int, bytes_per_row: float) -> None:
    """Refuse to begin what cannot fit on the disk."""
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


def labelled(views: ViewBatch, logits: torch.Tensor, codec: Codec) -> LabelBatch:
    """Attach labels, rounded to float16 unless the codec keeps all 32 bits."""
    labels = logits.half() if np.dtype(codec.label_dtype) == np.float16 else logits
    values = labels.numpy()
    check_labels(values, views.key, views.images)
    return with_labels(views, values)
