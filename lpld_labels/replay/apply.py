"""Applying views: from decoded images to the pixels the teacher saw.

Every step works on single values or single images with operations that round the same way wherever
they run, so a batch comes out bit-identical whatever the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from lpld_labels.errors import InvalidBatchError
from lpld_labels.manifest import Augmentation
from lpld_labels.records import CutOut, Mix, ViewBatch
from lpld_labels.replay.resize import Pixels, resizer
from lpld_labels.replay.store import ImageStore


def apply_views(views: ViewBatch, store: ImageStore, augmentation: Augmentation) -> torch.Tensor:
    """Return the pixels of a whole label batch: float32 [B, 3, H, W], channels-last, 0..255.

    Order: shuffle patches, crop, resize, flip, cut out, mix. Not normalised; see `normalise`.
    """
    _check_views(views, store)
    pixels = _resized(views, store, augmentation)
    if views.cutout is not None:
        _cut_out(pixels, views.cutout)
    if views.mix is None:
        mixed = pixels.to(torch.float32)
    elif views.mix.box is not None:
        mixed = _cutmix(pixels, views.mix).to(torch.float32)
    else:
        mixed = _mixup(pixels, views.mix)
    return mixed.permute(0, 3, 1, 2)


def normalise(pixels: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Return (pixels / 255 - mean) / std per channel for float32 [B, 3, H, W] in channels-last.

    Works on rows of a batch as on the whole: every value is rounded on its own.
    """
    rows = pixels.permute(0, 2, 3, 1).contiguous()
    width = rows.shape[2]
    # One factor and offset per value of an image row: long contiguous inner loops instead of threes.
    scale = torch.tensor([1.0 / (255.0 * s) for s in std], dtype=torch.float32).to(rows.device).repeat(width)
    shift = torch.tensor([m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32)
    flat = rows.reshape(rows.shape[0], rows.shape[1], -1).mul(scale).sub_(shift.to(rows.device).repeat(width))
    return flat.reshape(rows.shape).permute(0, 3, 1, 2)


def _check_views(views: ViewBatch, store: ImageStore) -> None:
    """Refuse crops outside their image: slicing would shrink them without a word."""
    if int(views.images.max()) >= len(store):
        raise InvalidBatchError(
            "field 'images' is wrong",
            where=views.key,
            expected=f"indices below {len(store)}",
            got=int(views.images.max()),
            hint="the image folder is not the one of this pool",
        )
    sizes = np.stack([store.table.heights[views.images], store.table.widths[views.images]], axis=1)
    outside = (views.crops[:, :2].astype(np.int64) + views.crops[:, 2:] > sizes).any(axis=1)
    if outside.any():
        slot = int(np.argmax(outside))
        raise InvalidBatchError(
            f"crop reaches outside image {int(views.images[slot])} (slot {slot})",
            where=views.key,
            expected=f"within {sizes[slot].tolist()} (height, width)",
            got=views.crops[slot].tolist(),
        )


def _resized(views: ViewBatch, store: ImageStore, augmentation: Augmentation) -> torch.Tensor:
    """Return each view before cut-out and mix: uint8 [B, H, W, 3]."""
    resize = resizer(augmentation.resize)
    height, width = augmentation.output_height, augmentation.output_width
    pixels = torch.empty((views.rows, height, width, 3), dtype=torch.uint8)
    for slot, (index, crop, flip) in enumerate(
        zip(views.images.tolist(), views.crops.tolist(), views.flips.tolist(), strict=True)
    ):
        image = store[index]
        if views.patch_order is not None:
            image = shuffle_patches(image, views.patch_order[slot])
        top, left, rows, columns = crop
        resized = resize(image[top : top + rows, left : left + columns], height, width)
        pixels[slot] = resized.flip(1) if flip else resized
    return pixels


def shuffle_patches(image: Pixels, order: npt.NDArray[np.uint8]) -> Pixels:
    """Return uint8 [H, W, 3] whose tile t (row by row) is tile order[t] of the image.

    Tiles are floor(H / n) by floor(W / n); rows and columns left over stay where they are.
    """
    grid = math.isqrt(len(order))
    height, width = image.shape[0] // grid, image.shape[1] // grid
    shuffled = image.copy()
    for target, source in enumerate(order.tolist()):
        (to_row, to_column), (row, column) = divmod(target, grid), divmod(source, grid)
        shuffled[to_row * height : (to_row + 1) * height, to_column * width : (to_column + 1) * width] = (
            image[row * height : (row + 1) * height, column * width : (column + 1) * width]
        )
    return shuffled


def _cut_out(pixels: torch.Tensor, cutout: CutOut) -> None:
    """Paint one box per view, in place."""
    for slot, (top, left, bottom, right) in enumerate(cutout.boxes.tolist()):
        pixels[slot, top:bottom, left:right] = torch.from_numpy(cutout.fill[slot])


def _cutmix(pixels: torch.Tensor, mix: Mix) -> torch.Tensor:
    """Show each partner inside the box."""
    if mix.box is not None:
        top, left, bottom, right = mix.box
        partner = torch.from_numpy(mix.partner.astype(np.int64))
        pixels[:, top:bottom, left:right] = pixels[:, top:bottom, left:right][partner]
    return pixels


def _mixup(pixels: torch.Tensor, mix: Mix) -> torch.Tensor:
    """Blend each view with its partner: float32 [B, H, W, 3]."""
    mixed = torch.empty(pixels.shape, dtype=torch.float32)
    for slot, partner in enumerate(mix.partner.tolist()):
        # Two products and a sum, not a fused step: those round differently at the ends of a thread's share.
        mixed[slot] = pixels[slot].to(torch.float32).mul_(mix.strength)
        mixed[slot] += pixels[partner].to(torch.float32).mul_(1.0 - mix.strength)
    return mixed
