"""A label batch as the list that SRe2L and its descendants save (see importers/batch_list.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.records import CutOut, ViewBatch
from lpld_labels.interop.pixels import cutouts_in_pixels


def batch_items(views: ViewBatch, images: ImageTable, augmentation: Augmentation) -> list[Any]:
    """Return items [0] to [4]: coords float32, flips or cut-outs, partners int64, lambda, box."""
    if views.patch_order is not None:
        raise LabelSourceError(
            "shuffled patches cannot be expressed in this format", where=views.key, hint="keep the pool"
        )
    sides = np.stack([images.heights[views.images], images.widths[views.images]] * 2, axis=1)
    coords = (views.crops.astype(np.float64) / sides).astype(np.float32)
    second = views.flips if views.cutout is None else _cutout_rows(views.cutout, augmentation, views)
    if views.mix is None:
        return [coords, second, None, None, None]
    box = None if views.mix.box is None else list(views.mix.box)
    return [coords, second, views.mix.partner.astype(np.int64), views.mix.strength, box]


def _cutout_rows(cutout: CutOut, augmentation: Augmentation, views: ViewBatch) -> npt.NDArray[np.float32]:
    """Return [B, 7] rows whose painting gives exactly these boxes.

    The program stores the centre before clipping. A box of at most half the view is clipped on one
    side at most, so the other side gives the centre back.
    """
    size = augmentation.output_height
    side = int((augmentation.cutout_fraction or 0.0) * size + 0.5)
    half = side // 2
    first, last = cutout.boxes[:, :2], cutout.boxes[:, 2:] - 1
    centre = np.where(first > 0, first + half, last - half)
    rows = np.concatenate([centre, np.full_like(centre, side)], axis=1) / size
    stored = np.concatenate([rows, cutout.fill], axis=1).astype(np.float32)
    if views.flips.any() or not _paints(stored, cutout, size):
        raise LabelSourceError(
            "these cut-outs cannot be expressed in this format",
            where=views.key,
            expected=f"boxes of {2 * half + 1} pixels, clipped to the view, and no flips",
        )
    return stored


def _paints(stored: npt.NDArray[np.float32], cutout: CutOut, size: int) -> bool:
    if not ((stored[:, :4] >= 0) & (stored[:, :4] <= 1)).all():
        return False
    painted = cutouts_in_pixels(stored, size, where="export")
    return bool((painted.boxes == cutout.boxes).all())
