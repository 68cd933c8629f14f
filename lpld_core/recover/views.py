"""How an optimised image is shown to the teacher: crop, resize, flip and roll as two matrices.

Bilinear resizing is linear and separable, and so are cropping, flipping and rolling. A whole view is
therefore ``rows @ image @ columns^T`` with one small matrix per axis: exact gradients, one code path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lpld_core.recover.settings import ViewRanges
from lpld_labels.format.drawing import draw_crops
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.random_streams import Stream, keyed_generator

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class View:
    """One crop (source pixels), flip and roll (output pixels down and right)."""

    top: int
    left: int
    height: int
    width: int
    flip: bool
    roll_down: int
    roll_right: int


def draw_view(
    ranges: ViewRanges, size: tuple[int, int], *, seed: int, unit: tuple[int, int], iteration: int
) -> View:
    """Draw the view of one unit at one iteration; it depends on nothing but the arguments."""
    random = keyed_generator(seed, Stream.RECOVERY_VIEWS, *unit, iteration)
    height, width = size
    augmentation = Augmentation(
        output_height=height,
        output_width=width,
        resize="torch",
        crop_scale=(ranges.smallest_crop, 1.0),
        crop_ratio=ranges.ratio,
    )
    crop = draw_crops(random, np.array([height]), np.array([width]), augmentation)[0].tolist()
    flip, down, right = random.random(3).tolist()
    return View(
        top=crop[0],
        left=crop[1],
        height=crop[2],
        width=crop[3],
        flip=flip < ranges.flip_probability,
        roll_down=_shift(down, ranges),
        roll_right=_shift(right, ranges),
    )


def _shift(draw: float, ranges: ViewRanges) -> int:
    """Turn a draw in [0, 1) into a whole number from -roll, or from 0, to roll."""
    least = -ranges.roll if ranges.roll_direction == "both" else 0
    return int(draw * (ranges.roll - least + 1)) + least


def draw_noise(shape: tuple[int, ...], *, seed: int, unit: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Return the standard normal images a unit starts from: float64 of the shape given."""
    return keyed_generator(seed, Stream.RECOVERY_NOISE, *unit, 0).standard_normal(shape)


def view_matrices(view: View, size: tuple[int, int]) -> tuple[Matrix, Matrix]:
    """Return rows [H, H] and columns [W, W] such that the view of an image X is rows @ X @ columns^T."""
    rows = _resize_matrix(view.top, view.height, size[0])
    columns = _resize_matrix(view.left, view.width, size[1])
    if view.flip:
        columns = columns[::-1]
    return np.roll(rows, view.roll_down, axis=0), np.roll(columns, view.roll_right, axis=0)


def _resize_matrix(start: int, length: int, size: int) -> Matrix:
    """Return [size, size]: take `length` pixels from `start` and resize them to `size`, bilinearly."""
    centre = np.maximum((np.arange(size) + 0.5) * length / size - 0.5, 0.0)
    lower = np.minimum(centre.astype(np.int64), length - 1)
    upper = np.minimum(lower + 1, length - 1)
    matrix = np.zeros((size, size))
    weight = centre - lower
    np.add.at(matrix, (np.arange(size), start + lower), 1 - weight)
    np.add.at(matrix, (np.arange(size), start + upper), weight)
    return matrix


def show(images: Tensor, sizes: list[int], views: list[View]) -> Tensor:
    """Return each unit's images through that unit's view; differentiable.

    images: float [B, 3, H, W], units one after the other. sizes: images per unit. Same shape back.
    """
    height, width = images.shape[2:]
    shown = []
    for unit, view in zip(torch.split(images, sizes), views, strict=True):
        rows, columns = (
            torch.from_numpy(matrix).to(device=images.device, dtype=images.dtype)
            for matrix in view_matrices(view, (height, width))
        )
        shown.append(rows @ unit @ columns.T)
    return torch.cat(shown)
