"""The one rule for what is shown of an image when nothing is drawn at random: its centre.

Evaluating, squeezing and analysing all look at images this way.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lpld_labels.render.resize import resize_torch

WHOLE_IMAGE_BELOW = 128
LARGE_IMAGE_SHARE = 224 / 256
"""Large views show the middle 7/8 of the shorter side, as ImageNet's usual evaluation does."""


def centre_view(image: npt.NDArray[np.uint8], size: tuple[int, int]) -> Tensor:
    """Return the centre of an image uint8 [H, W, 3] at a size: uint8 [height, width, 3].

    An image that has the size already, such as a recovered one, is shown whole: it was cut before.
    """
    height, width = image.shape[:2]
    whole = (height, width) == size or min(size) < WHOLE_IMAGE_BELOW
    top, left, rows, columns = centre_crop(height, width, size, 1.0 if whole else LARGE_IMAGE_SHARE)
    return resize_torch(image[top : top + rows, left : left + columns], *size)


def centre_crop(height: int, width: int, output: tuple[int, int], share: float) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of the centred crop of the output's shape.

    share: how much of the largest such crop's sides to take.
    """
    scale = share * min(height / output[0], width / output[1])
    rows = min(height, max(1, round(output[0] * scale)))
    columns = min(width, max(1, round(output[1] * scale)))
    return (height - rows) // 2, (width - columns) // 2, rows, columns
