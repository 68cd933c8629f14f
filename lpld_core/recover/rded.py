"""Images without optimisation (RDED): the crops of real images that the teacher is surest of.

Of every real image a few random crops are tried and the one with the lowest cross-entropy is kept;
the best crops of a class, shrunk and stitched n x n, are its images.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lpld_core.images import THREADS, RealFolder, prepared
from lpld_core.recover.settings import RdedSettings
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.drawing import draw_crops
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.render.apply import resize_torch


def stitch_class(
    teacher: LoadedTeacher,
    folder: RealFolder,
    label: int,
    settings: RdedSettings,
    *,
    batch_size: int = 100,
) -> Generator[int, None, Tensor]:
    """Make a class's images: yield the candidates looked at, return uint8 [ipc, H, W, 3].

    batch_size: crops the teacher sees at a time.
    """
    rows = candidates(folder, label, settings)
    kept, losses = [], []
    step = max(1, batch_size // settings.crops)
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(rows), step):
            chosen = rows[start : start + step].tolist()
            crops = torch.stack(list(pool.map(lambda row: _crops_of(folder, row, settings), chosen)))
            loss = _cross_entropy(teacher, crops.flatten(0, 1), label, settings.size)
            best = loss.view(len(chosen), settings.crops).min(dim=1)
            kept.append(crops[torch.arange(len(chosen)), best.indices])
            losses.append(best.values)
            yield min(start + step, len(rows))
    order = torch.cat(losses).argsort(stable=True)[: settings.ipc * settings.tiles**2]
    return _stitched(torch.cat(kept)[order], settings)


def candidates(folder: RealFolder, label: int, settings: RdedSettings) -> npt.NDArray[np.int64]:
    """Return the rows of a random choice of the class's images, in folder order; refuse too few."""
    rows = folder.rows_of(label)
    needed = settings.ipc * settings.tiles**2
    if min(len(rows), settings.candidates) < needed:
        raise InvalidArgumentError(
            f"class '{folder.class_names[label]}' has too few real images",
            where=folder.root,
            expected=f"{needed} for {settings.ipc} images of {settings.tiles} x {settings.tiles} crops",
            got=min(len(rows), settings.candidates),
            hint="lower ipc or add real images (or look at more candidates)",
        )
    draws = keyed_generator(settings.seed, Stream.STITCHED_CHOICE, label, 0, 0).random(len(rows))
    chosen: npt.NDArray[np.int64] = rows[np.sort(np.argsort(draws, kind="stable")[: settings.candidates])]
    return chosen


def _crops_of(folder: RealFolder, row: int, settings: RdedSettings) -> Tensor:
    """Return random crops of one real image: uint8 [crops, h, w, 3], of the teacher's size or a tile's."""
    image = folder.decode(row)
    size = settings.size if settings.scoring == "whole" else settings.tile
    augmentation = Augmentation(
        output_height=settings.size[0],
        output_width=settings.size[1],
        resize="torch",
        crop_scale=(settings.smallest_crop, 1.0),
        # Tiles have the output's shape, so crops of it are not distorted.
        crop_ratio=(settings.size[1] / settings.size[0],) * 2,
    )
    crops = draw_crops(
        keyed_generator(settings.seed, Stream.STITCHED_CROPS, row, 0, 0),
        np.full(settings.crops, image.shape[0], np.int64),
        np.full(settings.crops, image.shape[1], np.int64),
        augmentation,
    )
    views = [
        resize_torch(image[top : top + height, left : left + width], *size)
        for top, left, height, width in crops.tolist()
    ]
    return torch.stack(views)


@torch.inference_mode()
def _cross_entropy(teacher: LoadedTeacher, crops: Tensor, label: int, size: tuple[int, int]) -> Tensor:
    """Return the teacher's cross-entropy for crops in the middle of its images: float32 [N] on the CPU."""
    device = next(teacher.model.parameters()).device
    shown = _padded(prepared(crops, teacher.mean, teacher.std), size)
    logits = teacher.model(shown.to(device)).float()
    target = torch.full((len(crops),), label, device=device)
    return torch.nn.functional.cross_entropy(logits, target, reduction="none").cpu()


def _padded(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Surround normalised images [N, 3, h, w] with zeros, the mean colour, up to a size."""
    height, width = size[0] - images.shape[2], size[1] - images.shape[3]
    top, left = height // 2, width // 2
    return torch.nn.functional.pad(images, (left, width - left, top, height - top))


def _stitched(crops: Tensor, settings: RdedSettings) -> Tensor:
    """Shrink crops uint8 [ipc * n * n, h, w, 3] to tiles and lay each n * n of them side by side.

    Neighbours in the order of loss go to different images, so that no image gets all the best crops.
    """
    if crops.shape[1:3] != settings.tile:
        crops = torch.stack([resize_torch(crop.numpy(), *settings.tile) for crop in crops])
    grid = crops.view(settings.tiles, settings.tiles, settings.ipc, *settings.tile, 3)
    return grid.permute(2, 0, 3, 1, 4, 5).reshape(settings.ipc, *settings.size, 3)
