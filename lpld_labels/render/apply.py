"""Applying views: from decoded images to the pixels the teacher saw.

A view's pixels are whole numbers until views are mixed, so the work is done in uint8 and only the
last step makes floats. Every step handles one image at a time, or rounds each value on its own
(never a fused multiply-add, which rounds otherwise at the ends of a thread's share), so a batch
comes out bit-identical whatever the number of threads.
"""

from __future__ import annotations

import math
import threading

import torch

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.bounds import check_bounds
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.records import Box, CutOut, Mix, ViewBatch
from lpld_labels.render.patches import shuffle_patches
from lpld_labels.render.resize import find_resizer
from lpld_labels.render.store import ImageStore

_scratch = threading.local()


def apply_views(
    views: ViewBatch,
    store: ImageStore,
    augmentation: Augmentation,
    *,
    dtype: torch.dtype = torch.float32,
    out: torch.Tensor | None = None,
    inside: bool = False,
) -> torch.Tensor:
    """Return the pixels of a whole label batch: [B, 3, H, W], channels-last, 0..255.

    Order: shuffle patches, crop, resize, flip, cut out, mix. Not normalised; see `normalise`.

    dtype: float32, or uint8 for the same values in a quarter of the bytes (not with MixUp, whose
        values are not whole numbers).
    out: tensor to write into, as an earlier call returned it. Fresh memory costs more than the
        arithmetic, so callers that are done with a batch should hand it back.
    inside: the views are known to stay inside these images and this output, as those of a pool of them are
        that were read, and those that were drawn from them; others are checked here.
    """
    if not inside:
        check_bounds(views, store.table, augmentation)
    _check_dtype(dtype, views.mix)
    shape = (views.rows, 3, augmentation.output_height, augmentation.output_width)
    if out is None:
        out = torch.empty(shape, dtype=dtype, memory_format=torch.channels_last)
    _check_out(out, shape, dtype)
    plain = out if dtype == torch.uint8 else _scratch_bytes(shape)
    _render(views, store, augmentation, plain)
    if views.cutout is not None:
        _cut_out(plain, views.cutout)
    if views.mix is not None and views.mix.box is None:
        return _mixup(plain, views.mix, out)
    if views.mix is not None and views.mix.box is not None:
        _cutmix(plain, views.mix, views.mix.box)
    return out if plain is out else out.copy_(plain)


def _render(views: ViewBatch, store: ImageStore, augmentation: Augmentation, plain: torch.Tensor) -> None:
    """Write each view up to its flip into uint8 [B, 3, H, W]."""
    resize = find_resizer(augmentation.resize)
    slots = plain.permute(0, 2, 3, 1).unbind(0)
    height, width = augmentation.output_height, augmentation.output_width
    images, crops, flips = views.images.tolist(), views.crops.tolist(), views.flips.tolist()
    for slot, (index, crop, flip) in enumerate(zip(images, crops, flips, strict=True)):
        image = store[index]
        if views.patch_order is not None:
            image = shuffle_patches(image, views.patch_order[slot])
        top, left, rows, columns = crop
        view = resize(image[top : top + rows, left : left + columns], height, width)
        slots[slot].copy_(view.flip(1) if flip else view)


def _cut_out(plain: torch.Tensor, cutout: CutOut) -> None:
    """Paint one box per view, in place."""
    # Copied: a batch that was read from a pool is read-only, which torch warns about.
    fills = torch.from_numpy(cutout.fill.copy())[:, :, None, None]
    for slot, (top, left, bottom, right) in enumerate(cutout.boxes.tolist()):
        plain[slot, :, top:bottom, left:right] = fills[slot]


def _cutmix(plain: torch.Tensor, mix: Mix, box: Box) -> None:
    """Put the partner's pixels inside the box of each view, in place."""
    rows, columns = slice(box.top, box.bottom), slice(3 * box.left, 3 * box.right)
    inside = _lines(plain)[:, rows, columns]
    # Gathered before any is overwritten: partners are views of the same batch.
    inside.copy_(inside.index_select(0, torch.tensor(mix.partner.tolist())))


def _mixup(plain: torch.Tensor, mix: Mix, out: torch.Tensor) -> torch.Tensor:
    """Write strength * view + (1 - strength) * partner to `out`."""
    views, mixed = plain.unbind(0), out.unbind(0)
    other = torch.empty_like(mixed[0])
    for slot, partner in enumerate(mix.partner.tolist()):
        other.copy_(views[partner]).mul_(1.0 - mix.strength)
        mixed[slot].copy_(views[slot]).mul_(mix.strength).add_(other)
    return out


def _lines(pixels: torch.Tensor) -> torch.Tensor:
    """View channels-last [B, 3, H, W] as [B, H, W * 3]: long runs copy faster than threes."""
    batch, channels, height, width = pixels.shape
    return pixels.permute(0, 2, 3, 1).view(batch, height, width * channels)


def _scratch_bytes(shape: tuple[int, ...]) -> torch.Tensor:
    """Return uint8 channels-last memory of this thread that is reused from call to call."""
    held: torch.Tensor | None = getattr(_scratch, "held", None)
    needed = math.prod(shape)
    if held is None or len(held) < needed:
        held = torch.empty(needed, dtype=torch.uint8)
        _scratch.held = held
    rows, channels, height, width = shape
    return held[:needed].view(rows, height, width, channels).permute(0, 3, 1, 2)


def _check_dtype(dtype: torch.dtype, mix: Mix | None) -> None:
    if dtype not in (torch.float32, torch.uint8):
        raise InvalidArgumentError("pixels come as float32 or uint8", got=dtype)
    if dtype == torch.uint8 and mix is not None and mix.box is None:
        raise InvalidArgumentError("MixUp's pixels are not whole numbers", expected="float32", got=dtype)


def _check_out(out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    good = tuple(out.shape) == shape and out.dtype == dtype and out.device.type == "cpu"
    if not good or not out.is_contiguous(memory_format=torch.channels_last):
        raise InvalidArgumentError(
            "out does not fit the views",
            expected=f"{dtype} {list(shape)} on the CPU, channels-last",
            got=f"{out.dtype} {list(out.shape)} on {out.device}, strides {list(out.stride())}",
        )
