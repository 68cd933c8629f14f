"""What is shown of an image when nothing is drawn: one rule for evaluating, squeezing and analysing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from lpld_core.images import RealFolder, labelled_batches
from lpld_core.train.evaluate import ValidationSet
from lpld_labels.errors import ImageReadError
from tests.lpld_core.networks import MEAN, STD, noisy_folder, tiny_teacher


class Witness(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(images.clone())
        return torch.zeros(len(images), 2)


@pytest.mark.parametrize("side", [64, 128, 160], ids=["below 128", "of the output's size", "larger"])
def test_evaluation_and_squeezing_show_the_same_pixels(tmp_path: Path, side: int) -> None:
    root = noisy_folder(tmp_path / "real", classes=2, images=1, size=side)
    size = (64, 64) if side == 64 else (128, 128)
    witness = Witness()
    ValidationSet(root, size=size).accuracy(witness, MEAN, STD)
    folder = RealFolder.open(root)
    (squeezed, _), *more = labelled_batches(tiny_teacher(size=size), folder, np.arange(2), batch_size=2)
    assert not more
    assert torch.equal(torch.cat(witness.seen), squeezed)
    shown = (squeezed * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255
    whole = torch.from_numpy(folder.decode(0)).permute(2, 0, 1).float()
    is_whole = whole.shape == shown[0].shape and bool((shown[0] - whole).abs().max() < 0.01)
    assert is_whole == (side <= 128)


def test_batches_show_every_image_in_order(tmp_path: Path) -> None:
    folder = RealFolder.open(noisy_folder(tmp_path / "real", classes=3, images=5))
    rows = np.array([14, 0, 7, 7, 3])
    shown = list(labelled_batches(tiny_teacher(), folder, rows, batch_size=2))
    assert [len(labels) for _, labels in shown] == [2, 2, 1]
    assert torch.cat([labels for _, labels in shown]).tolist() == [2, 0, 1, 1, 0]
    images = torch.cat([images for images, _ in shown])
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    for image, row in zip(images, rows.tolist(), strict=True):
        pixels = torch.from_numpy(folder.decode(row)).permute(2, 0, 1)
        torch.testing.assert_close((image * std + mean) * 255, pixels.float(), rtol=0, atol=1e-3)


def test_broken_images_and_empty_classes_are_named(tmp_path: Path) -> None:
    root = noisy_folder(tmp_path / "real", classes=2, images=3)
    (root / "class1" / "001.png").write_bytes(b"no image")
    folder = RealFolder.open(root)
    batches = labelled_batches(tiny_teacher(), folder, np.arange(6), batch_size=4)
    with pytest.raises(ImageReadError, match=r"class1/001\.png: not an image"):
        list(batches)
    (root / "class2").mkdir()
    with pytest.raises(ImageReadError, match="class2: class folder contains no images"):
        RealFolder.open(root)


def test_grey_images_become_rgb(tmp_path: Path) -> None:
    (tmp_path / "grey" / "a").mkdir(parents=True)
    Image.new("L", (8, 8), 7).save(tmp_path / "grey" / "a" / "x.png")
    assert RealFolder.open(tmp_path / "grey").decode(0).shape == (8, 8, 3)
