"""Drawing views, against a second implementation that draws one number at a time."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import RandomResizedCrop

from lpld_labels import Augmentation, BatchKey, Box, CutOut, ImageTable, Mix, ViewBatch
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.render import batches_per_epoch, draw_views
from tests.lpld_labels.render.pictures import FEATURES, augmentation


def table_of(sizes: list[tuple[int, int]]) -> ImageTable:
    heights, widths = np.array(sizes, np.int32).T
    count = len(sizes)
    return ImageTable(
        paths=[f"c/{i}.png" for i in range(count)],
        classes=np.zeros(count, np.int32),
        heights=heights,
        widths=widths,
        digests=[None] * count,
    )


Sample = npt.NDArray[np.float64]
TABLE = table_of([(40 + 7 * i % 30, 30 + 11 * i % 50) for i in range(20)])


def fingerprint(views: ViewBatch) -> str:
    """Digest of every field of a batch, in the dtypes that records promise."""
    parts: list[Any] = [views.images, views.crops, views.flips]
    if views.mix is not None:
        box = [] if views.mix.box is None else list(views.mix.box)
        parts += [views.mix.partner, np.float64(views.mix.strength), np.array(box, np.int32)]
    if views.cutout is not None:
        parts += [views.cutout.boxes, views.cutout.fill]
    if views.patch_order is not None:
        parts.append(views.patch_order)
    return hashlib.sha256(b"".join(np.asarray(part).tobytes() for part in parts)).hexdigest()[:16]


def draw(
    settings: Augmentation, table: ImageTable = TABLE, seed: int = 7, epoch: int = 3, batch: int = 1
) -> ViewBatch:
    return draw_views(settings, table, seed=seed, epoch=epoch, batch=batch, batch_size=8)


def test_draws_stay_what_they_were() -> None:
    # Drawn pools depend on this value; tests/golden/v1/drawing.json has it in detail.
    assert fingerprint(draw(augmentation(**FEATURES["everything"]))) == "9903681a40e86eaf"


sides = st.integers(1, 300)
augmentations = st.builds(
    lambda scale, ratio, flip, mix, cutout, patches, height, width: Augmentation(
        output_height=height,
        output_width=width,
        resize="torch",
        crop_scale=scale,
        crop_ratio=ratio,
        flip_probability=flip,
        mix=mix[0],
        mix_alpha=mix[1],
        cutout_fraction=cutout,
        patch_grid=patches,
    ),
    scale=st.none() | st.tuples(st.floats(0.01, 0.5), st.floats(0.5, 1.0)),
    ratio=st.none() | st.tuples(st.floats(0.1, 1.0), st.floats(1.0, 10.0)),
    flip=st.none() | st.floats(0, 1),
    mix=st.tuples(st.just("none"), st.none())
    | st.tuples(st.sampled_from(["cutmix", "mixup"]), st.floats(0.01, 50)),
    cutout=st.none() | st.floats(0.01, 1.0),
    patches=st.none() | st.integers(1, 15),
    height=sides,
    width=sides,
)


@settings(max_examples=150, deadline=None)
@given(
    settings=augmentations,
    sizes=st.lists(st.tuples(sides, sides), min_size=1, max_size=12),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**31 - 1),
)
def test_draws_are_what_the_docstring_says(
    settings: Augmentation, sizes: list[tuple[int, int]], seed: int, epoch: int
) -> None:
    table = table_of(sizes)
    views = draw_views(settings, table, seed=seed, epoch=epoch, batch=0, batch_size=8)
    assert fingerprint(views) == fingerprint(slow_draw(settings, table, seed, epoch, batch_size=8))
    inside = views.crops[:, :2] + views.crops[:, 2:]
    assert (inside[:, 0] <= table.heights[views.images]).all()
    assert (inside[:, 1] <= table.widths[views.images]).all()
    if views.cutout is not None:
        assert (views.cutout.boxes[:, 2:] <= (settings.output_height, settings.output_width)).all()
    if views.mix is not None and views.mix.box is not None:
        assert views.mix.box.bottom <= settings.output_height
        assert views.mix.box.right <= settings.output_width


def test_draws_depend_on_nothing_else() -> None:
    settings = augmentation(**FEATURES["everything"])
    alone = fingerprint(draw(settings))
    np.random.default_rng().random(100)
    for batch in (2, 0, 1):
        again = fingerprint(draw(settings, batch=batch))
    assert again == alone
    assert len({fingerprint(draw(settings, seed=s, epoch=e)) for s in range(4) for e in range(4)}) == 16


def test_an_epoch_shows_every_image_once() -> None:
    settings = augmentation()
    assert batches_per_epoch(20, 8) == 3
    batches = [draw(settings, batch=b) for b in range(3)]
    assert [b.rows for b in batches] == [8, 8, 4]
    shown = np.concatenate([b.images for b in batches])
    assert sorted(shown.tolist()) == list(range(20))
    assert (
        shown.tolist() != np.concatenate([draw(settings, epoch=4, batch=b).images for b in range(3)]).tolist()
    )


def test_crops_are_distributed_as_torchvision_draws_them() -> None:
    side, count = 200, 4000
    settings = augmentation()
    table = table_of([(side, side)] * count)
    ours = draw_views(settings, table, seed=1, epoch=0, batch=0, batch_size=count).crops.astype(float)
    torch.manual_seed(0)
    blank = torch.zeros(3, side, side)
    theirs = np.array(
        [RandomResizedCrop.get_params(blank, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(count)], float
    )
    found, expected = (np.column_stack([c, c[:, 2] * c[:, 3], c[:, 3] / c[:, 2]]) for c in (ours, theirs))
    for column in range(6):
        assert kolmogorov_smirnov(found[:, column], expected[:, column]) < 0.045


def kolmogorov_smirnov(first: Sample, second: Sample) -> float:
    """Largest distance between two samples' distributions; 0.043 at the 0.1 % level for 4000 each."""
    both = np.sort(np.concatenate([first, second]))
    ranks = [np.searchsorted(np.sort(sample), both, side="right") / len(sample) for sample in (first, second)]
    return float(np.abs(ranks[0] - ranks[1]).max())


@pytest.mark.parametrize("alpha", [0.2, 4.0])
def test_strengths_follow_the_beta_distribution(alpha: float) -> None:
    settings = augmentation(mix="mixup", mix_alpha=alpha)
    table = table_of([(8, 8)])
    views = [draw_views(settings, table, seed=0, epoch=e, batch=0, batch_size=1) for e in range(1500)]
    drawn = [view.mix.strength for view in views if view.mix is not None]
    theirs = np.random.default_rng(0).beta(alpha, alpha, 50_000)
    assert kolmogorov_smirnov(np.array(drawn), theirs) < 0.05


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"crop_scale": (0.5, 0.1)}, r"crop_scale is out of range"),
        ({"crop_scale": (0.0, 1.5)}, r"crop_scale is out of range"),
        ({"crop_ratio": (-1.0, 1.0)}, r"crop_ratio is out of range"),
        ({"flip_probability": 1.5}, r"flip_probability is out of range"),
        ({"mix": "cutmix"}, r"mix_alpha is out of range \(expected a number above 0, got None\)"),
        ({"mix": "mixup", "mix_alpha": 0.0}, r"mix_alpha is out of range"),
        ({"mix": "blend"}, r"mix is out of range \(expected none, cutmix or mixup, got blend\)"),
        ({"cutout_fraction": 0.0}, r"cutout_fraction is out of range"),
        ({"patch_grid": 16}, r"patch_grid is out of range \(expected 1 to 15, got 16\)"),
    ],
)
def test_settings_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        draw(augmentation(**fields))


def test_a_batch_that_an_epoch_does_not_have_and_other_bad_numbers() -> None:
    for batch in (-1, 3):
        with pytest.raises(InvalidArgumentError, match=r"epoch 3: no such batch .*\(expected 0 to 2"):
            draw(augmentation(), batch=batch)
    with pytest.raises(InvalidArgumentError, match="batch size"):
        batches_per_epoch(10, 0)
    with pytest.raises(InvalidArgumentError, match="seed or place"):
        draw(augmentation(), seed=-1)


def test_drawing_starts_without_torch() -> None:
    program = "import sys, lpld_labels.render, lpld_labels.render.images; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


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
        crops = [
            _slow_crop(settings, crops[s][2:], areas[s], ratios[s], places[s].tolist()) for s in range(rows)
        ]
    flips = [False] * rows
    if settings.flip_probability is not None:
        flips = [draw < settings.flip_probability for draw in rng.random(rows).tolist()]
    return ViewBatch(
        key=BatchKey(epoch, 0),
        images=np.array(images, np.int32),
        crops=np.array(crops, np.int32),
        flips=np.array(flips),
        cutout=_slow_cutout(rng, rows, settings),
        mix=_slow_mix(rng, rows, settings),
        patch_order=patches,
    )


def _ranked(draws: npt.NDArray[np.float64]) -> list[int]:
    return sorted(range(len(draws)), key=lambda i: float(draws[i]))


def _below(draw: float, count: int) -> int:
    return min(math.floor(draw * count), count - 1)


def _slow_crop(
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


def _slow_cutout(rng: np.random.Generator, rows: int, settings: Augmentation) -> CutOut | None:
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


def _slow_mix(rng: np.random.Generator, rows: int, settings: Augmentation) -> Mix | None:
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
