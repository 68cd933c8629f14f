"""Make images without optimisation (RDED): stitch crops of real images with low teacher cross-entropy.

From each real image, the best of a few random crops is kept. The best crops of a class are shrunk, and n x n
crops are stitched into an image.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from lpld_core.images import RealFolder, Rows, prepared, random_crops
from lpld_core.recover.settings import RdedSettings
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.render.apply import resized_crop
from lpld_labels.render.images import THREADS, map_ahead

_BATCH = 100
"""Crops per forward pass of the teacher."""


def stitch_class(
    teacher: LoadedTeacher, folder: RealFolder, label: int, settings: RdedSettings
) -> Generator[int, None, Tensor]:
    """Make the images of a class: yield the number of real images done, return uint8 [ipc, H, W, 3]."""
    rows = candidates(folder, label, settings)
    kept, losses = [], []
    step = max(1, _BATCH // settings.crops)
    work = partial(_crops_of, folder, settings=settings)
    with closing(map_ahead(work, rows.tolist(), workers=THREADS, ahead=step)) as tried:
        for start in range(0, len(rows), step):
            crops = torch.stack(list(islice(tried, step)))
            loss = _cross_entropy(teacher, crops.flatten(0, 1), label, settings.size)
            best = loss.view(len(crops), settings.crops).min(dim=1)
            kept.append(crops[torch.arange(len(crops)), best.indices])
            losses.append(best.values)
            yield min(start + step, len(rows))
    order = torch.cat(losses).argsort(stable=True)[: settings.ipc * settings.tiles**2]
    # Crops with similar losses go to different images, so that no image gets all the best crops.
    grid = torch.cat(kept)[order].view(settings.tiles, settings.tiles, settings.ipc, *settings.tile, 3)
    return grid.permute(2, 0, 3, 1, 4, 5).reshape(settings.ipc, *settings.size, 3)


def candidates(folder: RealFolder, label: int, settings: RdedSettings) -> Rows:
    """Choose random images of a class; return their rows in folder order. Refuse a class with too few."""
    found = min(len(folder.rows_of(label)), settings.candidates)
    needed = settings.ipc * settings.tiles**2
    if found < needed:
        raise InvalidArgumentError(
            f"class '{folder.class_names[label]}' has too few real images",
            where=folder.root,
            expected=f"{needed} for {settings.ipc} images of {settings.tiles} x {settings.tiles} crops",
            got=found,
            hint="lower ipc, add real images or raise candidates",
        )
    return folder.sample(label, settings.candidates, seed=settings.seed, stream=Stream.STITCHED_CHOICE)


def _crops_of(folder: RealFolder, row: int, settings: RdedSettings) -> Tensor:
    """Return random crops of one real image as tiles: uint8 [crops, h, w, 3]."""
    image = folder.decode(row)
    crops = random_crops(
        keyed_generator(settings.seed, Stream.STITCHED_CROPS, row, 0, 0),
        image.shape[:2],
        settings.size,
        least=settings.smallest_crop,
        # Tiles have the output's aspect ratio, and so have the crops: nothing is distorted.
        ratio=(settings.size[1] / settings.size[0],) * 2,
        count=settings.crops,
    )
    return torch.stack([resized_crop(image, crop, settings.tile) for crop in crops])


@torch.inference_mode()
def _cross_entropy(teacher: LoadedTeacher, crops: Tensor, label: int, size: tuple[int, int]) -> Tensor:
    """Return the teacher's cross-entropy, float32 [N], on crops padded to `size` as in RDED's program."""
    device = next(teacher.model.parameters()).device
    images = prepared(crops, teacher.mean, teacher.std)
    height, width = size[0] - images.shape[2], size[1] - images.shape[3]
    top, left = height // 2, width // 2
    # Zero is the mean colour after normalisation.
    shown = torch.nn.functional.pad(images, (left, width - left, top, height - top))
    logits = teacher.model(shown.to(device)).float()
    target = torch.full((len(crops),), label, device=device)
    return torch.nn.functional.cross_entropy(logits, target, reduction="none").cpu()
