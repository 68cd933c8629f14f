"""Convert between the fractions in label files and the pixels that the labelling program used.

The programs store pixels divided by the size of the image. So pixel = round(fraction * size) is exact if the
fraction's precision suffices (float16: sizes up to 2047). If a product is not close to an integer, the
labelled image had a different size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import ImageMismatchError, LabelFileError, LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.records import BoolArray, CutOut, IntArray, ViewBatch

Fractions = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]

CUTOUT_COLUMNS = 7
"""Columns: centre row, centre column, height and width as fractions of the view, then red, green, blue."""


def exact_sizes(dtype: np.dtype[Any]) -> int:
    """Return the largest image side at which fractions of this dtype identify each pixel."""
    # A fraction is off by at most half a unit in the last place below 1, which is eps / 4.
    return int(2.0 / float(np.finfo(dtype).eps)) - 1


def image_sides(table: ImageTable, images: IntArray) -> Integers:
    """Return int64 [B, 4]: the image sides (H, W, H, W) that convert crop fractions to pixels."""
    return np.stack([table.heights[images], table.widths[images]] * 2, axis=1).astype(np.int64)


def crops_in_pixels(
    fractions: Fractions, sides: Integers, images: IntArray, *, where: object, down: bool = False
) -> IntArray:
    """Return crops int32 [B, 4], (top, left, height, width) from fractions 0..1. sides: see `image_sides`.

    down: round each product down, as HALD's trainer does, although a fraction may be a little too small.
    """
    pixels, off = _whole_pixels(fractions, sides)
    if down:
        pixels = np.floor(fractions.astype(np.float64) * sides).astype(np.int64)
    room = sides[:, :2] - pixels[:, :2]
    if int(sides.max()) > exact_sizes(fractions.dtype):
        # Coarse fractions may round to a crop that ends outside the image.
        slack = np.ceil(sides[:, :2] * (float(np.finfo(fractions.dtype).eps) / 2))
        over = np.maximum(pixels[:, 2:] - room, 0)
        pixels[:, 2:] -= np.where(over <= slack, over, 0)
    wrong = off.any(axis=1) | ((pixels[:, 2:] > room) | (pixels[:, 2:] < 1)).any(axis=1)
    if wrong.any():
        slot = int(np.argmax(wrong))
        raise ImageMismatchError(
            f"crop of slot {slot} does not fall on whole pixels of image {int(images[slot])}",
            where=where,
            expected=f"whole pixels of a {sides[slot, 0]} x {sides[slot, 1]} image",
            got=(fractions[slot].astype(np.float64) * sides[slot]).round(3).tolist(),
            hint="these are not the images that were labelled: check --images",
        )
    return pixels.astype(np.int32)


def cutouts_in_pixels(stored: Fractions, output_size: int, *, where: object) -> CutOut:
    """Return the boxes that the ImageNet-21K program painted. stored: [B, 7], see CUTOUT_COLUMNS.

    The program clips two corners, centre - half and centre + half, to the view. ``ImageDraw.rectangle`` then
    paints a box that includes the second corner.
    """
    fractions, colours = stored[:, :4], stored[:, 4:]
    pixels, off = _whole_pixels(fractions, np.full(fractions.shape, output_size))
    if off.any():
        slot = int(np.argmax(off.any(axis=1)))
        raise LabelFileError(
            f"cut-out of slot {slot} does not fall on whole pixels of the view",
            where=where,
            expected=f"multiples of 1/{output_size}",
            got=fractions[slot].tolist(),
            hint="give the size of the views with --output-size",
        )
    if (colours != np.round(colours)).any() or colours.min() < 0 or colours.max() > 255:
        raise LabelFileError(
            "cut-out colours are out of range",
            where=where,
            expected="whole numbers from 0 to 255",
            got=f"{colours.min()} to {colours.max()}",
        )
    centre, half = pixels[:, :2], pixels[:, 2:] // 2
    first = np.clip(centre - half, 0, output_size)
    last = np.clip(centre + half, 0, output_size)
    boxes = np.concatenate([first, np.minimum(last + 1, output_size)], axis=1)
    return CutOut(boxes=boxes.astype(np.int32), fill=colours.astype(np.uint8))


def _whole_pixels(fractions: Fractions, sides: Integers) -> tuple[Integers, BoolArray]:
    """Return fractions * sides as integers, and a mask of products that are too far from an integer."""
    # In float64, as the programs do: a Python float times the side of the image.
    exact = fractions.astype(np.float64) * sides
    pixels = np.rint(exact)
    # Half a unit in the last place plus a margin: float16 values were rounded twice, via float32.
    tolerance = sides * (float(np.finfo(fractions.dtype).eps) / 4 * 1.001) + 1e-9
    return pixels.astype(np.int64), np.abs(exact - pixels) > tolerance


def stored_fractions(views: ViewBatch, images: ImageTable) -> npt.NDArray[np.float32]:
    """Return crops as the programs store them: float32 [B, 4], fractions of the image sides."""
    if views.patch_order is not None:
        raise LabelSourceError(
            "shuffled patches cannot be expressed in this format", where=views.key, hint="use the pool itself"
        )
    return (views.crops / image_sides(images, views.images)).astype(np.float32)


def cutouts_in_fractions(
    views: ViewBatch, cutout: CutOut, augmentation: Augmentation
) -> npt.NDArray[np.float32]:
    """Return cut-outs as the program stores them: float32 [B, 7], with centres of the unclipped boxes."""
    size = augmentation.output_height
    side = int((augmentation.cutout_fraction or 0.0) * size + 0.5)
    half = side // 2
    first, last = cutout.boxes[:, :2], cutout.boxes[:, 2:] - 1
    centre = np.where(first > 0, first + half, last - half)
    rows = np.concatenate([centre, np.full_like(centre, side)], axis=1) / size
    stored = np.concatenate([rows, cutout.fill], axis=1).astype(np.float32)
    inside = ((stored[:, :4] >= 0) & (stored[:, :4] <= 1)).all()
    painted = inside and (cutouts_in_pixels(stored, size, where="export").boxes == cutout.boxes).all()
    if views.flips.any() or not painted:
        raise LabelSourceError(
            "these cut-outs cannot be expressed in this format",
            where=views.key,
            expected=f"boxes of {2 * half + 1} pixels, clipped to the view, and no flips",
        )
    return stored
