"""Draw views: the images, crops and augmentations of a batch, determined by (seed, epoch, batch).

The order of draws is part of the format: builds are equal bit for bit only if they draw the same numbers in
the same order. All draws are float64 in [0, 1) from ``Generator.random``, whose stream NumPy keeps stable;
NumPy's other distributions may change between releases.

An epoch's image order is the stable argsort of N draws of ``keyed_generator(seed, epoch)``; batch b
takes images [b * batch_size, (b + 1) * batch_size) of this order. (A build for another program uses that
program's order instead; nothing else changes.) The views of a batch use draws of
``keyed_generator(seed, epoch, batch)`` for patches, crops, flips, cut-outs and mix, in this order. A step
that is not used draws nothing. SPEC.md ("Drawing") defines every draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import BatchKey, Box, CutOut, IntArray, Mix, ViewBatch

# exp and log are fixed sequences of float64 operations (SPEC.md, "Elementary functions"), because libraries
# differ in the last bit and crops must be the same on every machine. ln 2 is split in two parts: the first
# has so few bits that its product with a small integer is exact.
_LN2_HIGH = float.fromhex("0x1.62e42feep-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_PER_LN2 = 1.4426950408889634
_SQRT_HALF = 0.7071067811865476

CROP_TRIES = 10
DEFAULT_CROP_RATIO = (3 / 4, 4 / 3)

FloatArray = npt.NDArray[np.float64]
LongArray = npt.NDArray[np.int64]


def batches_per_epoch(n_images: int, batch_size: int) -> int:
    """Return the number of batches in an epoch. The last batch may be incomplete."""
    if batch_size < 1:
        raise InvalidArgumentError("batch size is out of range", expected="at least 1", got=batch_size)
    return -(-n_images // batch_size)


def draw_views(
    augmentation: Augmentation,
    images: ImageTable,
    *,
    seed: int,
    epoch: int,
    batch: int,
    batch_size: int,
    strength: float | None = None,
    order: IntArray | None = None,
) -> ViewBatch:
    """Draw the views of one batch. The result depends only on the arguments.

    strength: the recorded mix strength. None: compute it (the last bits may differ between machines).
    order: int32 [N], the epoch's image order. None: draw it from the seed.
    """
    n_images = len(images)
    batches = batches_per_epoch(n_images, batch_size)
    if not 0 <= batch < batches:
        raise InvalidArgumentError(
            "batch is out of range", expected=f"0 to {batches - 1}", got=batch, where=f"epoch {epoch}"
        )
    _require_drawable(augmentation)
    if order is None:
        order = _epoch_order(seed, epoch, n_images)
    chosen = order[batch * batch_size : (batch + 1) * batch_size]
    heights, widths = images.heights[chosen].astype(np.int64), images.widths[chosen].astype(np.int64)
    rng = keyed_generator(seed, epoch, batch)
    rows = len(chosen)
    grid, flip = augmentation.patch_grid, augmentation.flip_probability
    patch_order = None
    if grid is not None:
        patch_order = np.argsort(rng.random((rows, grid * grid)), axis=1, kind="stable").astype(np.uint8)
    crops = draw_crops(rng, heights, widths, augmentation)
    flips = np.zeros(rows, np.bool_) if flip is None else rng.random(rows) < flip
    return ViewBatch(
        key=BatchKey(epoch, batch),
        images=chosen,
        crops=crops,
        flips=flips,
        cutout=_draw_cutout(rng, rows, augmentation),
        mix=_draw_mix(rng, rows, augmentation, strength),
        patch_order=patch_order,
    )


def draw_images(n_images: int, *, seed: int, epoch: int, batch: int, batch_size: int) -> IntArray:
    """Return the images of a batch without drawing its views: int32 [B], empty if `batch` is too large."""
    return _epoch_order(seed, epoch, n_images)[batch * batch_size : (batch + 1) * batch_size]


def _shuffled(seed: int, epoch: int, n_images: int) -> IntArray:
    draws = keyed_generator(seed, epoch).random(n_images)
    order = np.argsort(draws, kind="stable").astype(np.int32)
    order.setflags(write=False)
    return order


# Two caches, because loaders alternate between epochs: at most 64 MB of small orders, and four large orders.
_FEW_IMAGES = 1 << 15
_order_of_few = lru_cache(maxsize=512)(_shuffled)
_order_of_many = lru_cache(maxsize=4)(_shuffled)


def _epoch_order(seed: int, epoch: int, n_images: int) -> IntArray:
    return (_order_of_few if n_images <= _FEW_IMAGES else _order_of_many)(seed, epoch, n_images)


def draw_crops(
    rng: np.random.Generator, heights: LongArray, widths: LongArray, augmentation: Augmentation
) -> IntArray:
    """Draw RandomResizedCrop as torchvision does: int32 [B, 4] as (top, left, height, width)."""
    if augmentation.crop_scale is None:
        origin = np.zeros_like(heights)
        return np.stack([origin, origin, heights, widths], axis=1).astype(np.int32)
    _require_drawable(augmentation)
    smallest, largest = augmentation.crop_scale
    ratio = augmentation.crop_ratio or DEFAULT_CROP_RATIO
    rows = len(heights)
    areas = smallest + rng.random((rows, CROP_TRIES)) * (largest - smallest)
    low, high = log(ratio[0]), log(ratio[1])
    ratios = exp(low + rng.random((rows, CROP_TRIES)) * (high - low))
    places = rng.random((rows, 2))

    pixels = areas * (heights * widths)[:, None]
    tall = np.rint(np.sqrt(pixels / ratios)).astype(np.int64)
    wide = np.rint(np.sqrt(pixels * ratios)).astype(np.int64)
    fits = (tall > 0) & (tall <= heights[:, None]) & (wide > 0) & (wide <= widths[:, None])
    # argmax finds the first try that fits. If no try fits, use the largest centred crop.
    first = np.argmax(fits, axis=1)
    every = np.arange(rows)
    some = fits[every, first]
    fallback = _largest_crop(heights, widths, ratio)
    height = np.where(some, tall[every, first], fallback[0])
    width = np.where(some, wide[every, first], fallback[1])
    top = np.where(some, _whole(places[:, 0], heights - height + 1), (heights - height) // 2)
    left = np.where(some, _whole(places[:, 1], widths - width + 1), (widths - width) // 2)
    return np.stack([top, left, height, width], axis=1).astype(np.int32)


def _largest_crop(
    heights: LongArray, widths: LongArray, ratio: Sequence[float]
) -> tuple[LongArray, LongArray]:
    """Return the heights and widths of the largest crops with an aspect ratio within `ratio` (low, high)."""
    shape = widths / heights
    height = np.where(shape < ratio[0], np.rint(widths / ratio[0]), heights)
    width = np.where(shape > ratio[1], np.rint(heights * ratio[1]), widths)
    return np.clip(height, 1, heights).astype(np.int64), np.clip(width, 1, widths).astype(np.int64)


def _draw_cutout(rng: np.random.Generator, rows: int, augmentation: Augmentation) -> CutOut | None:
    """Draw a box per view. Before it is clipped, its sides are cutout_fraction of the output's sides."""
    fraction = augmentation.cutout_fraction
    if fraction is None:
        return None
    size = np.array([augmentation.output_height, augmentation.output_width])
    sides = np.maximum(np.rint(size * fraction).astype(np.int64), 1)
    start = _whole(rng.random((rows, 2)), size) - sides // 2
    corners = np.concatenate([np.maximum(start, 0), np.minimum(start + sides, size)], axis=1)
    fill = _whole(rng.random((rows, 3)), np.array(256)).astype(np.uint8)
    return CutOut(boxes=corners.astype(np.int32), fill=fill)


def _draw_mix(
    rng: np.random.Generator, rows: int, augmentation: Augmentation, strength: float | None
) -> Mix | None:
    alpha = augmentation.mix_alpha
    if augmentation.mix == "none" or alpha is None:
        return None
    first, second = rng.random(2).tolist()
    if strength is None:
        strength = _symmetric_beta(alpha, first, second)
    partner = np.argsort(rng.random(rows), kind="stable").astype(np.int32)
    box = _draw_mix_box(rng, strength, augmentation) if augmentation.mix == "cutmix" else None
    return Mix(partner=partner, strength=strength, box=box)


def _draw_mix_box(rng: np.random.Generator, strength: float, augmentation: Augmentation) -> Box:
    """Draw the CutMix box. Before it is clipped, its sides are sqrt(1 - strength) of the output's sides."""
    size = np.array([augmentation.output_height, augmentation.output_width])
    half = (size * math.sqrt(1.0 - strength)).astype(np.int64) // 2
    centre = _whole(rng.random(2), size)
    top, left = np.maximum(centre - half, 0).tolist()
    bottom, right = np.minimum(centre + half, size).tolist()
    return Box(top, left, bottom, right)


def _symmetric_beta(alpha: float, first: float, second: float) -> float:
    """Convert two uniform draws to one Beta(alpha, alpha) draw, exactly, without rejection sampling.

    Bailey's polar method gives Student's t with 2 * alpha degrees of freedom, and t / sqrt(2 alpha + t^2) is
    a symmetric beta scaled to [-1, 1]. Combining both formulas avoids overflow.
    """
    power = (1.0 - first) ** (1.0 / alpha)
    cosine = math.cos(2.0 * math.pi * second)
    length = math.sqrt(power + (1.0 - power) * cosine * cosine)
    return 0.5 + 0.5 * cosine * math.sqrt(1.0 - power) / length


def _whole(draws: FloatArray, count: LongArray) -> LongArray:
    """Convert uniform draws to integers below `count`."""
    return np.minimum((draws * count).astype(np.int64), count - 1)


def _require_drawable(augmentation: Augmentation) -> None:
    problem = augmentation.drawing_problem()
    if problem is not None:
        field, expected = problem
        raise InvalidArgumentError(
            f"{field} is out of range", expected=expected, got=getattr(augmentation, field)
        )


def exp(x: FloatArray) -> FloatArray:
    """Return e**x for float64 x of any shape, -700 <= x <= 700."""
    twos = np.rint(x * _PER_LN2)
    rest = (x - twos * _LN2_HIGH) - twos * _LN2_LOW
    total = np.full_like(rest, 1 / math.factorial(13))
    for n in range(12, -1, -1):
        # Two statements prevent a fused multiply-add, which would round only once.
        total *= rest
        total += 1 / math.factorial(n)
    result: FloatArray = np.ldexp(total, twos.astype(np.int32))
    return result


def log(x: float) -> float:
    """Return the natural logarithm of a number above 0."""
    mantissa, twos = math.frexp(x)
    if mantissa < _SQRT_HALF:
        mantissa, twos = 2 * mantissa, twos - 1
    ratio = (mantissa - 1) / (mantissa + 1)
    square = ratio * ratio
    total = 1 / 23
    for n in range(21, 0, -2):
        total = total * square + 1 / n
    return twos * _LN2_HIGH + (twos * _LN2_LOW + (2 * ratio) * total)
