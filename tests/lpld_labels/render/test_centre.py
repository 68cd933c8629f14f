"""Centre views, and the transform of validation images."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from lpld_labels.render.centre import EvaluationTransform, centre_crop, centre_view
from tests.lpld_labels.loader.loader_pools import MEAN, STD


@pytest.mark.parametrize(
    ("size", "share", "crop"),
    [
        ((64, 64), 1.0, (0, 0, 64, 64)),
        ((64, 100), 1.0, (0, 18, 64, 64)),
        ((256, 256), 224 / 256, (16, 16, 224, 224)),
        ((500, 375), 224 / 256, (86, 23, 328, 328)),
        ((1, 9), 1.0, (0, 4, 1, 1)),
    ],
)
def test_centre_crops(size: tuple[int, int], share: float, crop: tuple[int, int, int, int]) -> None:
    assert centre_crop(*size, (64, 64), share) == crop


def test_centre_view_keeps_the_shape_of_things() -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    assert (centre_view(wide, (5, 5)) == 200).all()
    assert (centre_view(wide.transpose(1, 0, 2).copy(), (5, 5)) == 200).all()
    assert centre_view(wide, (4, 12)).shape == (4, 12, 3)


@pytest.mark.parametrize(
    ("mode", "size"), [("RGB", (16, 16)), ("RGB", (128, 144)), ("L", (16, 16)), ("RGBA", (16, 12))]
)
def test_the_transform_is_the_normalised_centre_view(mode: str, size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (190, 170, 4)).astype(np.uint8)
    image = Image.fromarray(pixels, "RGBA").convert(mode)
    found = pickle.loads(pickle.dumps(EvaluationTransform(size, MEAN, STD)))(image)
    assert (found.dtype, found.shape) == (torch.float32, (3, *size))
    view = centre_view(np.array(image.convert("RGB")), size).permute(2, 0, 1)
    expected = v2.functional.normalize(view / 255, list(MEAN), list(STD))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert torch.equal(EvaluationTransform(size, None, None)(image), view.float())
