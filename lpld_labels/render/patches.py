"""Shuffling the patches of an image (RDED)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


def shuffle_patches(image: Pixels, order: npt.NDArray[np.uint8]) -> Pixels:
    """Return uint8 [H, W, 3] whose tile t (row by row) is tile order[t] of the image.

    Tiles are floor(H / n) by floor(W / n); rows and columns left over stay where they are.
    """
    grid = math.isqrt(len(order))
    height, width = image.shape[0] // grid, image.shape[1] // grid
    shuffled: Pixels = image.copy()
    for target, source in enumerate(order.tolist()):
        top, left = (target // grid) * height, (target % grid) * width
        from_top, from_left = (source // grid) * height, (source % grid) * width
        tile = image[from_top : from_top + height, from_left : from_left + width]
        shuffled[top : top + height, left : left + width] = tile
    return shuffled
