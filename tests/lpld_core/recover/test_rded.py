"""rded: which crops it chooses, how it lays them out, and that it resumes with the same real images only."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from lpld_core.images import RealFolder
from lpld_core.recover.rded import stitch_class
from lpld_core.recover.run import RunSummary, recover_images
from lpld_core.recover.settings import RdedSettings
from lpld_core.settings import Part
from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.exec.job import run_task
from lpld_labels.format.drawing import draw_crops
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.render.apply import resize_torch
from tests.lpld_core.networks import MEAN, STD, noisy_folder, tiny_teacher

SIDE, TILES, IPC, CROPS = 16, 2, 2, 3
PADDED = RdedSettings(ipc=IPC, size=(SIDE, SIDE), crops=CROPS, tiles=TILES, seed=2)


SMALL = RdedSettings(ipc=1, size=(8, 8), crops=1)


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


def test_rded_refuses_classes_with_too_few_images(tmp_path: Path) -> None:
    real = RealFolder.open(noisy_folder(tmp_path / "real", classes=4, images=7))
    with pytest.raises(InvalidArgumentError, match=r"'class0' has too few real images.*expected 8.*got 7"):
        recover_images(tiny_teacher(), tmp_path / "out", settings=RdedSettings(ipc=2, size=(8, 8)), real=real)
    assert not (tmp_path / "out").exists()
    three = RealFolder.open(noisy_folder(tmp_path / "three", classes=3, images=4))
    with pytest.raises(InvalidArgumentError, match=r"expected 4 .the teacher's., got 3"):
        recover_images(tiny_teacher(), tmp_path / "out", settings=SMALL, real=three)


def write_real(root: Path, *, seed: int = 0) -> Path:
    return noisy_folder(root, classes=4, images=4, size=10, seed=seed, suffix="bmp")


def stitch(out: Path, real: Path, part: Part | None = None, *, overwrite: bool = False) -> RunSummary:
    folder = RealFolder.open(real)
    return recover_images(tiny_teacher(), out, settings=SMALL, real=folder, part=part, overwrite=overwrite)


def images_of(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.rglob("*.jpg"))}


@pytest.fixture
def real(tmp_path: Path) -> Path:
    return write_real(tmp_path / "real")


@pytest.mark.parametrize("part", [Part(number=1, of=3), None])
def test_other_real_images_are_not_mixed_in(tmp_path: Path, real: Path, part: Part | None) -> None:
    """Neither into a part of the images, nor are they said to be what all were made of."""
    out, other = tmp_path / "out", write_real(tmp_path / "other", seed=1)
    assert RealFolder.open(other).listing_digest() == RealFolder.open(real).listing_digest()
    stitch(out, real, part)
    before = images_of(out)
    with pytest.raises(PoolConflictError, match="'real_images_digest' differs") as caught:
        stitch(out, other)
    assert "--overwrite" in caught.value.hint
    assert images_of(out) == before
    more = Path(shutil.copytree(real, tmp_path / "more"))
    shutil.copy(real / "class0" / "000.bmp", more / "class3" / "009.bmp")
    with pytest.raises(PoolConflictError, match="'real_images_digest' differs"):
        stitch(out, more)
    stitch(out, other, overwrite=True)
    stitch(tmp_path / "alone", other)
    assert images_of(out) == images_of(tmp_path / "alone")


def test_copies_of_the_real_images_are_the_same(tmp_path: Path, real: Path) -> None:
    stitch(tmp_path / "whole", real)
    copied = Path(shutil.copytree(real, tmp_path / "copied", copy_function=shutil.copyfile))
    stitch(tmp_path / "out", real, Part(number=1, of=2))
    assert stitch(tmp_path / "out", copied, Part(number=2, of=2)).complete
    assert images_of(tmp_path / "out") == images_of(tmp_path / "whole")
