"""RDED's choice and stitching as its program does it, said again in plain torch, pixel for pixel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lpld_core.images import RealFolder
from lpld_core.recover.rded import stitch_class
from lpld_core.recover.settings import RdedSettings
from lpld_labels.exec.job import run_task
from lpld_labels.format.drawing import draw_crops
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.render.apply import resize_torch
from tests.lpld_core.networks import MEAN, STD, noisy_folder, tiny_teacher

SIDE, TILES, IPC, CROPS = 16, 2, 2, 3
PADDED = RdedSettings(ipc=IPC, size=(SIDE, SIDE), crops=CROPS, tiles=TILES, seed=2)


def published(folder: RealFolder, label: int) -> torch.Tensor:
    """Score every crop as a tile in the middle of a mean-coloured image; lay the surest out by turns."""
    teacher, tile = tiny_teacher(size=(SIDE, SIDE)), SIDE // TILES
    square = Augmentation(
        output_height=tile, output_width=tile, resize="torch", crop_scale=(0.08, 1.0), crop_ratio=(1.0, 1.0)
    )
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    best = []
    for row in folder.rows_of(label).tolist():
        image = folder.decode(row)
        draws = keyed_generator(PADDED.seed, Stream.STITCHED_CROPS, row, 0, 0)
        heights, widths = (np.full(CROPS, side, np.int64) for side in image.shape[:2])
        scored = []
        for top, left, height, width in draw_crops(draws, heights, widths, square).tolist():
            crop = resize_torch(image[top : top + height, left : left + width], tile, tile)
            shown = torch.zeros(1, 3, SIDE, SIDE)
            edge = (SIDE - tile) // 2
            inside = slice(edge, edge + tile)
            shown[0, :, inside, inside] = (crop.permute(2, 0, 1) / 255 - mean) / std
            with torch.no_grad():
                probabilities = teacher.model(shown).softmax(dim=1)
            scored.append((-float(probabilities[0, label].log()), crop))
        best.append(min(scored, key=lambda entry: entry[0]))
    best.sort(key=lambda entry: entry[0])
    images = torch.zeros(IPC, SIDE, SIDE, 3, dtype=torch.uint8)
    for place, (_, crop) in enumerate(best[: IPC * TILES**2]):
        down, right = divmod(place // IPC, TILES)
        images[place % IPC, down * tile : (down + 1) * tile, right * tile : (right + 1) * tile] = crop
    return images


@pytest.mark.parametrize("label", [0, 3])
def test_padded_tiles_are_chosen_and_laid_out_as_published(tmp_path: Path, label: int) -> None:
    folder = RealFolder.open(noisy_folder(tmp_path / "real", classes=4, images=12, size=24))
    steps = stitch_class(tiny_teacher(size=(SIDE, SIDE)), folder, label, PADDED)
    found = run_task(steps, lambda units: True)
    assert found is not None
    assert torch.equal(found.fact, published(folder, label))
