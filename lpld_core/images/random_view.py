"""A random view of a real image: RandomResizedCrop and a flip, as networks are trained with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lpld_labels.format.drawing import draw_crops
from lpld_labels.format.manifest import Augmentation
from lpld_labels.render.resize import resize_torch

CROP_SCALE = (0.08, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)
FLIP_PROBABILITY = 0.5


def random_view(image: npt.NDArray[np.uint8], size: tuple[int, int], draws: np.random.Generator) -> Tensor:
    """Return a random crop of an image uint8 [H, W, 3] at a size, flipped half the time: uint8 [h, w, 3]."""
    augmentation = Augmentation(
        output_height=size[0],
        output_width=size[1],
        resize="torch",
        crop_scale=CROP_SCALE,
        crop_ratio=CROP_RATIO,
    )
    heights, widths = (np.array([side], np.int64) for side in image.shape[:2])
    top, left, height, width = draw_crops(draws, heights, widths, augmentation)[0].tolist()
    view = resize_torch(image[top : top + height, left : left + width], *size)
    return view.flip(1) if draws.random() < FLIP_PROBABILITY else view
