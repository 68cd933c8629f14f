"""Applying views in plain NumPy, one view and one step at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, functional

from lpld_labels import Augmentation, Box, ViewBatch
from lpld_labels.render import ImageStore

Pixels = npt.NDArray[np.uint8]


def slow_apply(views: ViewBatch, store: ImageStore, settings: Augmentation) -> npt.NDArray[np.float32]:
    """Return float32 [B, H, W, 3], 0..255."""
    plain = [_view(views, slot, store[int(views.images[slot])], settings) for slot in range(views.rows)]
    if views.mix is None:
        return np.stack(plain).astype(np.float32)
    mixed = []
    for slot, partner in enumerate(views.mix.partner.tolist()):
        own, other = plain[slot].astype(np.float32), plain[partner].astype(np.float32)
        if views.mix.box is not None:
            mixed.append(np.where(_inside(views.mix.box, own.shape), other, own))
        else:
            mixed.append(own * np.float32(views.mix.strength) + other * np.float32(1 - views.mix.strength))
    return np.stack(mixed)


def _view(views: ViewBatch, slot: int, image: Pixels, settings: Augmentation) -> Pixels:
    if views.patch_order is not None:
        image = _shuffled(image, views.patch_order[slot].tolist())
    top, left, height, width = views.crops[slot].tolist()
    size = (settings.output_height, settings.output_width)
    if settings.resize != "torch":
        mode = InterpolationMode.BICUBIC if settings.resize == "pil_bicubic" else InterpolationMode.BILINEAR
        # Columns first, whatever Pillow would do at once.
        columns = (height, size[1])
        picture = functional.resized_crop(Image.fromarray(image), top, left, height, width, columns, mode)
        picture = functional.resize(picture, size, mode)
        view = np.asarray(functional.hflip(picture) if views.flips[slot] else picture)
    else:
        # Planes instead of channels-last: another loop of PyTorch's, which must give the same values.
        crop = image[top : top + height, left : left + width]
        planes = torch.from_numpy(crop.transpose(2, 0, 1).copy())[None]
        resized = torch.nn.functional.interpolate(planes, size, mode="bilinear", antialias=True)
        view = resized[0].numpy().transpose(1, 2, 0)
        view = view[:, ::-1] if views.flips[slot] else view
    if views.cutout is not None:
        box = Box(*views.cutout.boxes[slot].tolist())
        view = np.where(_inside(box, view.shape), views.cutout.fill[slot], view)
    return view


def _inside(box: Box, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    inside = (rows >= box.top) & (rows < box.bottom) & (columns >= box.left) & (columns < box.right)
    return np.asarray(inside[..., None])


def _shuffled(image: Pixels, order: list[int]) -> Pixels:
    """Each pixel of a tile comes from the same place of another tile; what no tile covers stays."""
    grid = round(len(order) ** 0.5)
    tall, wide = image.shape[0] // grid, image.shape[1] // grid
    shuffled: Pixels = image.copy()
    for row in range(tall * grid):
        for column in range(wide * grid):
            source = order[row // tall * grid + column // wide]
            shuffled[row, column] = image[
                source // grid * tall + row % tall, source % grid * wide + column % wide
            ]
    return shuffled
