"""Centre views, on which networks are evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lpld_labels.render.apply import normalise, resize_torch
from lpld_labels.render.store import Pixels

Size = tuple[int, int]
"""Height and width."""
WHOLE_IMAGE_BELOW = 128
LARGE_IMAGE_SHARE = 224 / 256
"""Large views show the middle 7/8 of the shorter side, as ImageNet's usual evaluation does."""


def centre_view(image: Pixels, size: Size) -> Tensor:
    """Return the centre of an image uint8 [H, W, 3], resized to uint8 [height, width, 3].

    If the view is small or the image already has its size, the largest crop of the view's shape is used.
    """
    height, width = image.shape[:2]
    whole = (height, width) == size or min(size) < WHOLE_IMAGE_BELOW
    return resized_crop(image, centre_crop(height, width, size, 1.0 if whole else LARGE_IMAGE_SHARE), size)


def centre_crop(height: int, width: int, output: Size, share: float) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of a centred crop in the output's shape. share: 1 for the largest."""
    scale = share * min(height / output[0], width / output[1])
    rows = min(height, max(1, round(output[0] * scale)))
    columns = min(width, max(1, round(output[1] * scale)))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def resized_crop(image: Pixels, crop: Sequence[int], size: Size) -> Tensor:
    """Return a crop (top, left, height, width) of an image uint8 [H, W, 3], resized to uint8 [h, w, 3]."""
    top, left, height, width = crop
    return resize_torch(image[top : top + height, left : left + width], *size)


@dataclass(frozen=True)
class EvaluationTransform:
    """A function from a PIL image to its centre view, normalised: float32 [3, height, width].

    mean, std: of pixels scaled to 0..1; None for pixels 0..255.
    """

    size: Size
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    def __call__(self, image: Image.Image) -> Tensor:
        view = centre_view(np.array(image.convert("RGB")), self.size).permute(2, 0, 1)
        if self.mean is None or self.std is None:
            return view.to(torch.float32)
        return normalise(view[None], self.mean, self.std)[0]
