"""Drawing the views of a batch from seed, augmentation, image table and key."""

from __future__ import annotations

import math

import numpy as np

from .batch_index import BatchEntry
from .errors import Refused, need
from .image_table import ImageTable
from .manifest import NAME, Augmentation, Manifest
from .stream import Stream, below, exp, generator, log, order
from .views import Views

TRIES = 10


def _crop(
    height: int, width: int, scale: tuple[float, ...], ratio: tuple[float, ...],
    u: list[float], v: list[float], w: list[float],
) -> tuple[int, int, int, int]:  # fmt: skip
    """Draw one crop: top, left, height, width."""
    low, high = scale
    a, b = log(ratio[0]), log(ratio[1])
    for j in range(TRIES):
        area = (low + u[j] * (high - low)) * (height * width)
        aspect = exp(a + v[j] * (b - a))
        crop_height, crop_width = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 1 <= crop_height <= height and 1 <= crop_width <= width:
            return (
                below(w[0], height - crop_height + 1), below(w[1], width - crop_width + 1),
                crop_height, crop_width,
            )  # fmt: skip
    crop_height, crop_width = height, width
    if width / height < ratio[0]:
        crop_height = min(max(round(width / ratio[0]), 1), height)
    elif width / height > ratio[1]:
        crop_width = min(max(round(height * ratio[1]), 1), width)
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def _crops(stream: Stream, images: list[int], table: ImageTable, how: Augmentation) -> list[tuple[int, ...]]:
    """Draw the crops of a batch."""
    sizes = [(int(table.heights[i]), int(table.widths[i])) for i in images]
    if how.crop_scale is None:
        return [(0, 0, height, width) for height, width in sizes]
    ratio = (3 / 4, 4 / 3) if how.crop_ratio is None else how.crop_ratio
    rows = len(images)
    u, v = stream.draws(rows * TRIES), stream.draws(rows * TRIES)
    w = stream.draws(rows * 2)
    out: list[tuple[int, ...]] = []
    for i, (height, width) in enumerate(sizes):
        tries = slice(i * TRIES, (i + 1) * TRIES)
        out.append(_crop(height, width, how.crop_scale, ratio, u[tries], v[tries], w[2 * i : 2 * i + 2]))
    return out


def _cutouts(
    stream: Stream, rows: int, how: Augmentation, fraction: float
) -> tuple[list[list[int]], list[int]]:
    """Draw cut-out boxes (top, left, bottom, right) and fills."""
    size = (how.output_height, how.output_width)
    sides = [max(1, round(side * fraction)) for side in size]
    draws = stream.draws(rows * 2)
    boxes = []
    for i in range(rows):
        starts = [below(draws[2 * i + axis], size[axis]) - sides[axis] // 2 for axis in (0, 1)]
        ends = [min(starts[axis] + sides[axis], size[axis]) for axis in (0, 1)]
        boxes.append([max(start, 0) for start in starts] + ends)
    return boxes, [below(draw, 256) for draw in stream.draws(rows * 3)]


def _mix_box(stream: Stream, how: Augmentation, strength: float) -> tuple[int, ...]:
    """Draw the CutMix box: top, left, bottom, right."""
    size = (how.output_height, how.output_width)
    draws = stream.draws(2)
    tops, ends = [], []
    for axis in (0, 1):
        half = math.floor(size[axis] * math.sqrt(1 - strength)) // 2
        centre = below(draws[axis], size[axis])
        tops.append(max(centre - half, 0))
        ends.append(min(centre + half, size[axis]))
    return (*tops, *ends)


class Drawer:
    """Draws batches; keeps the image order of the last epoch."""

    def __init__(self, manifest: Manifest, table: ImageTable) -> None:
        """Wrap what views are a function of."""
        assert manifest.seed is not None
        self.manifest = manifest
        self.table = table
        self.seed = manifest.seed
        self._epoch = -1
        self._order: list[int] = []

    def images(self, epoch: int, batch: int) -> list[int]:
        """Give the images of a batch."""
        if epoch != self._epoch:
            self._order = order(generator(self.seed, epoch).draws(len(self.table.paths)))
            self._epoch = epoch
        size = self.manifest.batch_size
        return self._order[batch * size : (batch + 1) * size]

    def draw(self, entry: BatchEntry, file: str) -> Views:
        """Draw the views of a batch; they are still to be compared with the index."""
        try:
            return self._draw(entry, file)
        except (OverflowError, ValueError, ZeroDivisionError) as error:
            raise Refused(NAME, "augmentation", f"cannot be drawn from: {error}") from error

    def _draw(self, entry: BatchEntry, file: str) -> Views:
        """Draw in the order of the text."""
        how = self.manifest.augmentation
        images = self.images(entry.epoch, entry.batch)
        rows = len(images)
        need(rows == entry.rows, file, "rows", f"the epoch has {rows} images at {entry.key}")
        stream = generator(self.seed, entry.epoch, entry.batch)
        patches = None
        if how.patch_grid is not None:
            tiles = how.patch_grid**2
            patches = np.array([order(stream.draws(tiles)) for _ in range(rows)], np.uint8)
        crops = np.array(_crops(stream, images, self.table, how), np.int32)
        flips = np.zeros(rows, bool)
        if how.flip_probability is not None:
            flips = np.array([draw < how.flip_probability for draw in stream.draws(rows)])
        cutouts, fills = None, None
        if how.cutout_fraction is not None:
            boxes, colours = _cutouts(stream, rows, how, how.cutout_fraction)
            cutouts, fills = np.array(boxes, np.int32), np.array(colours, np.uint8).reshape(rows, 3)
        partners, box, strength = None, None, entry.mix_strength
        if how.mix != "none":
            assert strength is not None
            stream.draws(2)
            partners = np.array(order(stream.draws(rows)), np.int32)
            if how.mix == "cutmix":
                box = _mix_box(stream, how, strength)
        return Views(
            entry.epoch, entry.batch, np.array(images, np.int32), crops, flips, partners, strength, box,
            cutouts, fills, patches,
        )  # fmt: skip
