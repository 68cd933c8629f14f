"""Drawing one number at a time, written from the words of draw.py's docstring."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lpld_labels import Augmentation, BatchKey, Box, CutOut, ImageTable, Mix, ViewBatch
from lpld_labels.format.random_streams import keyed_generator

Crop = tuple[int, int, int, int]


def slow_draw(settings: Augmentation, table: ImageTable, seed: int, epoch: int, batch_size: int) -> ViewBatch:
    """Return batch 0 of an epoch."""
    images = _ranked(keyed_generator(seed, epoch).random(len(table)))[:batch_size]
    rng = keyed_generator(seed, epoch, 0)
    rows = len(images)
    patches = None
    if settings.patch_grid is not None:
        patches = np.array([_ranked(rng.random(settings.patch_grid**2)) for _ in images], np.uint8)
    crops = [(0, 0, int(table.heights[i]), int(table.widths[i])) for i in images]
    if settings.crop_scale is not None:
        areas, ratios, places = rng.random((rows, 10)), rng.random((rows, 10)), rng.random((rows, 2))
        crops = [_crop(settings, crops[s][2:], areas[s], ratios[s], places[s].tolist()) for s in range(rows)]
    flips = [False] * rows
    if settings.flip_probability is not None:
        flips = [draw < settings.flip_probability for draw in rng.random(rows).tolist()]
    return ViewBatch(
        key=BatchKey(epoch, 0),
        images=np.array(images, np.int32),
        crops=np.array(crops, np.int32),
        flips=np.array(flips),
        cutout=_cutout(rng, rows, settings),
        mix=_mix(rng, rows, settings),
        patch_order=patches,
    )


def _ranked(draws: npt.NDArray[np.float64]) -> list[int]:
    return sorted(range(len(draws)), key=lambda i: float(draws[i]))


def _below(draw: float, count: int) -> int:
    return min(math.floor(draw * count), count - 1)


def _crop(
    settings: Augmentation,
    size: tuple[int, ...],
    areas: npt.NDArray[np.float64],
    ratios: npt.NDArray[np.float64],
    place: list[float],
) -> Crop:
    height, width = size
    low, high = settings.crop_scale or (1.0, 1.0)
    ratio = settings.crop_ratio or (3 / 4, 4 / 3)
    logs = np.log(ratio)
    for area, shape in zip(areas.tolist(), ratios.tolist(), strict=True):
        pixels = (low + area * (high - low)) * (height * width)
        aspect = np.exp(logs[0] + shape * (logs[1] - logs[0]))
        tall, wide = round(math.sqrt(pixels / aspect)), round(math.sqrt(pixels * aspect))
        if 0 < tall <= height and 0 < wide <= width:
            return _below(place[0], height - tall + 1), _below(place[1], width - wide + 1), tall, wide
    tall, wide = height, width
    if width / height < ratio[0]:
        tall = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        wide = max(1, round(height * ratio[1]))
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def _cutout(rng: np.random.Generator, rows: int, settings: Augmentation) -> CutOut | None:
    if settings.cutout_fraction is None:
        return None
    height, width = settings.output_height, settings.output_width
    tall = max(1, round(height * settings.cutout_fraction))
    wide = max(1, round(width * settings.cutout_fraction))
    boxes = []
    for row, column in rng.random((rows, 2)).tolist():
        top, left = _below(row, height) - tall // 2, _below(column, width) - wide // 2
        boxes.append((max(top, 0), max(left, 0), min(top + tall, height), min(left + wide, width)))
    fill = [[_below(draw, 256) for draw in colour] for colour in rng.random((rows, 3)).tolist()]
    return CutOut(boxes=np.array(boxes, np.int32), fill=np.array(fill, np.uint8))


def _mix(rng: np.random.Generator, rows: int, settings: Augmentation) -> Mix | None:
    if settings.mix_alpha is None:
        return None
    first, second = rng.random(2).tolist()
    power = (1 - first) ** (1 / settings.mix_alpha)
    cosine = math.cos(2 * math.pi * second)
    spread = math.sqrt(power + (1 - power) * cosine * cosine)
    strength = 0.5 + 0.5 * cosine * math.sqrt(1 - power) / spread
    partner = np.array(_ranked(rng.random(rows)), np.int32)
    if settings.mix == "mixup":
        return Mix(partner=partner, strength=strength)
    height, width = settings.output_height, settings.output_width
    y, x = (_below(draw, side) for draw, side in zip(rng.random(2).tolist(), (height, width), strict=True))
    share = math.sqrt(1 - strength)
    tall, wide = int(height * share) // 2, int(width * share) // 2
    box = Box(max(y - tall, 0), max(x - wide, 0), min(y + tall, height), min(x + wide, width))
    return Mix(partner=partner, strength=strength, box=box)
