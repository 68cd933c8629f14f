"""Render the pixels of views, and normalise them for a model.

Pixels are integers until views are mixed, so all steps but the last work in uint8. Results are bit-identical
for any number of threads, because every step handles one image at a time or rounds each value separately.
Fused multiply-add is avoided: it rounds differently at the ends of a thread's chunk.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from lpld_labels.codecs.base import row_pieces
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import Augmentation, require_normalisation
from lpld_labels.format.records import Box, CutOut, Mix, ViewBatch
from lpld_labels.pool.views import require_readable_views
from lpld_labels.render.store import ImageStore, Pixels

Resizer = Callable[[Pixels, int, int], torch.Tensor]
"""(crop uint8 [h, w, 3], output height, output width) -> uint8 [height, width, 3]."""

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
    """Return the pixels of a label batch: [B, 3, H, W], channels-last, 0..255.

    The steps are: shuffle patches, crop, resize, flip, cut out, mix. To normalise pixels, use `normalise`.

    dtype: float32, or uint8 for the same values in a quarter of the bytes (not with MixUp, whose
        values are not integers).
    out: tensor to write into, such as an earlier result. Allocating memory costs more than rendering.
    inside: skip the bounds check, for views that were read from a pool or drawn.
    """
    if not inside:
        require_readable_views(views, store.table, augmentation)
    _check_dtype(dtype, views.mix)
    shape = (views.rows, 3, augmentation.output_height, augmentation.output_width)
    if out is None:
        out = torch.empty(shape, dtype=dtype, memory_format=torch.channels_last)
    _check_out("views", out, shape, dtype, torch.device("cpu"))
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
    # Copied because torch warns about read-only arrays, such as those of a pool.
    fills = torch.from_numpy(cutout.fill.copy())[:, :, None, None]
    for slot, (top, left, bottom, right) in enumerate(cutout.boxes.tolist()):
        plain[slot, :, top:bottom, left:right] = fills[slot]


def _cutmix(plain: torch.Tensor, mix: Mix, box: Box) -> None:
    batch, channels, height, width = plain.shape
    # [B, H, W * 3]: long runs copy faster than runs of three values.
    lines = plain.permute(0, 2, 3, 1).view(batch, height, width * channels)
    inside = lines[:, box.top : box.bottom, channels * box.left : channels * box.right]
    # Gather all pixels before overwriting any, because partners are views of the same batch.
    inside.copy_(inside.index_select(0, torch.tensor(mix.partner.tolist())))


def _mixup(plain: torch.Tensor, mix: Mix, out: torch.Tensor) -> torch.Tensor:
    views, mixed = plain.unbind(0), out.unbind(0)
    other = torch.empty_like(mixed[0])
    for slot, partner in enumerate(mix.partner.tolist()):
        other.copy_(views[partner]).mul_(1.0 - mix.strength)
        mixed[slot].copy_(views[slot]).mul_(mix.strength).add_(other)
    return out


def _scratch_bytes(shape: tuple[int, ...]) -> torch.Tensor:
    """Return uint8 channels-last memory that this thread reuses in every call."""
    held: torch.Tensor | None = getattr(_scratch, "held", None)
    needed = math.prod(shape)
    if held is None or len(held) < needed:
        held = torch.empty(needed, dtype=torch.uint8)
        _scratch.held = held
    rows, channels, height, width = shape
    return held[:needed].view(rows, height, width, channels).permute(0, 3, 1, 2)


def _check_dtype(dtype: torch.dtype, mix: Mix | None) -> None:
    if dtype not in (torch.float32, torch.uint8):
        raise InvalidArgumentError("pixels must be float32 or uint8", got=dtype)
    if dtype == torch.uint8 and mix is not None and mix.box is None:
        raise InvalidArgumentError("MixUp requires pixels of a float dtype", expected="float32", got=dtype)


def _check_out(
    what: str, out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    fits = tuple(out.shape) == shape and out.dtype == dtype and out.device == device
    if not fits or not out.is_contiguous(memory_format=torch.channels_last):
        raise InvalidArgumentError(
            f"argument out does not fit the {what}",
            expected=f"{dtype} {list(shape)} on {device}, channels-last",
            got=f"{out.dtype} {list(out.shape)} on {out.device}, strides {list(out.stride())}",
        )


def take_views(views: ViewBatch, slots: npt.NDArray[np.int64]) -> ViewBatch:
    """Return the views of distinct `slots`, then mix partners outside `slots`, each mixed with itself."""
    order, mix = slots, views.mix
    if mix is not None:
        partners = mix.partner[slots]
        order = np.concatenate([slots, np.setdiff1d(partners, slots)])
        moved = np.empty(views.rows, np.int32)
        moved[order] = np.arange(len(order))
        own = np.arange(len(slots), len(order), dtype=np.int32)
        mix = replace(mix, partner=np.concatenate([moved[partners], own]))
    cutout = views.cutout
    return ViewBatch(
        key=views.key,
        images=views.images[order],
        crops=views.crops[order],
        flips=views.flips[order],
        mix=mix,
        cutout=None if cutout is None else CutOut(boxes=cutout.boxes[order], fill=cutout.fill[order]),
        patch_order=None if views.patch_order is None else views.patch_order[order],
    )


def normalise(
    pixels: torch.Tensor, mean: Sequence[float], std: Sequence[float], *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return (pixels / 255 - mean) / std per channel: float32 [B, 3, H, W], channels-last.

    pixels: uint8 or float32, on any device, without gradient. out: may be `pixels` if these are float32.
    Every value is rounded separately, so the result of an image does not depend on other images.
    """
    require_normalisation(mean, std)
    if pixels.ndim != 4 or pixels.shape[1] != 3:
        raise InvalidArgumentError("pixels have the wrong shape", expected="[B, 3, H, W]", got=pixels.shape)
    if out is None:
        out = torch.empty(
            pixels.shape, dtype=torch.float32, device=pixels.device, memory_format=torch.channels_last
        )
    _check_out("pixels", out, tuple(pixels.shape), torch.float32, pixels.device)
    batch, _, height, width = out.shape
    scale, shift = torch.empty((2, width, 3), device=out.device)
    for channel, (m, s) in enumerate(zip(mean, std, strict=True)):
        # Filling works on the device; a tensor of a list would be copied there, and waited for.
        scale[:, channel], shift[:, channel] = 1.0 / (255.0 * s), m / s
    scale, shift = scale.view(-1), shift.view(-1)
    # One factor per value of an image row, not per channel: long inner loops are faster than short loops.
    targets = out.permute(0, 2, 3, 1).view(batch * height, width * 3)
    sources = pixels.permute(0, 2, 3, 1).reshape(batch * height, width * 3)
    for target, source in row_pieces(targets, sources):
        if out is not pixels:
            target.copy_(source)
        target.mul_(scale).sub_(shift)
    return out


def shuffle_patches(image: Pixels, order: npt.NDArray[np.uint8]) -> Pixels:
    """Return a copy with tile order[t] at place t, by row. Each of n x n tiles is floor(H/n) x floor(W/n)."""
    grid = math.isqrt(len(order))
    height, width = image.shape[0] // grid, image.shape[1] // grid
    shuffled: Pixels = image.copy()
    for target, source in enumerate(order.tolist()):
        top, left = (target // grid) * height, (target % grid) * width
        from_top, from_left = (source // grid) * height, (source % grid) * width
        tile = image[from_top : from_top + height, from_left : from_left + width]
        shuffled[top : top + height, left : left + width] = tile
    return shuffled


def resize_torch(crop: Pixels, height: int, width: int) -> torch.Tensor:
    """Resize with PyTorch's uint8 channels-last kernel: bilinear, antialiased, one thread per image."""
    # Let torch add the batch dimension: its stride must be the largest for channels-last, and any other
    # layout makes the kernel three times slower.
    source = torch.from_numpy(crop)[None].permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(source, size=(height, width), mode="bilinear", antialias=True)
    return resized[0].permute(1, 2, 0)


def _resize_pil(method: Image.Resampling, crop: Pixels, height: int, width: int) -> torch.Tensor:
    """Resize a crop with Pillow, as torchvision does with PIL images: first the width, then the height.

    The two steps are separate, because Pillow 13 resizes the height of tall crops first.
    """
    columns = Image.fromarray(crop).resize((width, crop.shape[0]), method)
    return torch.from_numpy(np.array(columns.resize((width, height), method)))


RESIZERS: dict[str, Resizer] = {
    "pil": partial(_resize_pil, Image.Resampling.BILINEAR),
    "pil_bicubic": partial(_resize_pil, Image.Resampling.BICUBIC),
    "torch": resize_torch,
}
"""Resize functions by name (`Augmentation.resize`). Labels depend on them. FKD's program uses pil_bicubic."""


def find_resizer(name: str) -> Resizer:
    """Return a resize backend by its name in the manifest."""
    if name not in RESIZERS:
        raise InvalidArgumentError(
            "unknown resize backend",
            expected=f"one of {', '.join(RESIZERS)}",
            got=name,
            hint="upgrade lpld-labels if a newer version wrote this pool",
        )
    return RESIZERS[name]


WHOLE_IMAGE_BELOW = 128
LARGE_IMAGE_SHARE = 224 / 256
"""Large views show the middle 7/8 of the shorter side, as ImageNet's usual evaluation does."""


def centre_view(image: Pixels, size: tuple[int, int]) -> torch.Tensor:
    """Return the centre of an image uint8 [H, W, 3], resized to uint8 [height, width, 3].

    A small view shows the largest crop of the view's shape. So does an image that already has this size.
    """
    height, width = image.shape[:2]
    whole = (height, width) == size or min(size) < WHOLE_IMAGE_BELOW
    scale = (1.0 if whole else LARGE_IMAGE_SHARE) * min(height / size[0], width / size[1])
    rows = min(height, max(1, round(size[0] * scale)))
    columns = min(width, max(1, round(size[1] * scale)))
    return resized_crop(image, ((height - rows) // 2, (width - columns) // 2, rows, columns), size)


def resized_crop(image: Pixels, crop: Sequence[int], size: tuple[int, int]) -> torch.Tensor:
    """Return a crop (top, left, height, width) of an image uint8 [H, W, 3], resized to uint8 [h, w, 3]."""
    top, left, height, width = crop
    return resize_torch(image[top : top + height, left : left + width], *size)


def evaluation_input(
    image: Image.Image, *, size: tuple[int, int], mean: Sequence[float] | None, std: Sequence[float] | None
) -> torch.Tensor:
    """Return the centre view of a PIL image: float32 [3, H, W], normalised (0..255 without mean and std)."""
    view = centre_view(np.array(image.convert("RGB")), size).permute(2, 0, 1).to(torch.float32)
    return view if mean is None or std is None else normalise(view[None], mean, std)[0]
