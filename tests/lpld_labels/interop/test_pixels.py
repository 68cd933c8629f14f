from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from lpld_labels.errors import ImageMismatchError, LabelFileError
from lpld_labels.interop.pixels import crops_in_pixels, cutouts_in_pixels, exact_sizes

Crop = tuple[int, int, int, int, int, int]


@st.composite
def crops(draw: st.DrawFn, largest: int) -> Crop:
    tall, wide = draw(st.integers(1, largest)), draw(st.integers(1, largest))
    height, width = draw(st.integers(1, tall)), draw(st.integers(1, wide))
    return draw(st.integers(0, tall - height)), draw(st.integers(0, wide - width)), height, width, tall, wide


def stored(crop: Crop, *, half: bool = False) -> Any:
    """Divide and round as the programs do: Python floats, FloatTensor, and for LPQLD half()."""
    top, left, height, width, tall, wide = crop
    coords = torch.FloatTensor((top / tall, left / wide, height / tall, width / wide))
    return (coords.half() if half else coords).numpy()[None]


def recovered(coords: Any, tall: int, wide: int) -> list[int]:
    sides = np.array([[tall, wide, tall, wide]])
    found: list[int] = crops_in_pixels(coords, sides, np.zeros(1, np.int32), where="x")[0].tolist()
    return found


@pytest.mark.parametrize(("largest", "half"), [(20_000, False), (2047, True)])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_pixel_comes_back(largest: int, half: bool, data: st.DataObject) -> None:
    assert exact_sizes(np.dtype(np.float16)) == 2047
    crop = data.draw(crops(largest))
    assert recovered(stored(crop, half=half), *crop[4:]) == list(crop[:4])


@settings(max_examples=100, deadline=None)
@given(crop=crops(6000))
def test_half_precision_of_larger_images_is_near_and_inside(crop: Crop) -> None:
    top, left, height, width = recovered(stored(crop, half=True), *crop[4:])
    assert 0 <= top < top + height <= crop[4]
    assert 0 <= left < left + width <= crop[5]
    assert max(abs(a - b) for a, b in zip((top, left, height, width), crop[:4], strict=True)) <= 3


@pytest.mark.parametrize("half", [False, True])
def test_another_image_size_is_noticed(half: bool) -> None:
    rng = np.random.default_rng(0)
    coords = np.concatenate(
        [stored((*rng.integers(0, 50, 2), *rng.integers(80, 170, 2), 224, 224), half=half) for _ in range(32)]
    )
    ids = np.arange(32, dtype=np.int32)
    sides = np.full((32, 4), 224)
    crops_in_pixels(coords, sides, ids, where="batch_0.tar")
    sides[:, 0::2] = 256
    message = r"batch_0\.tar: crop of slot \d+ does not fall on whole pixels"
    with pytest.raises(ImageMismatchError, match=message):
        crops_in_pixels(coords, sides, ids, where="batch_0.tar")


def program_cutout(size: int, y: int, x: int, fill: tuple[int, int, int]) -> tuple[Any, Any]:
    """Do what the 21K program does when it labels: its pixels, and the row it stores."""
    side = int(0.5 * size + 0.5)
    first = [int(np.clip(centre - side // 2, 0, size)) for centre in (y, x)]
    last = [int(np.clip(centre + side // 2, 0, size)) for centre in (y, x)]
    picture = Image.new("RGB", (size, size), (9, 9, 9))
    ImageDraw.Draw(picture).rectangle([first[1], first[0], last[1], last[0]], fill=fill)
    row = torch.FloatTensor([y / size, x / size, side / size, side / size, *fill]).numpy()[None]
    return np.asarray(picture), row


@settings(max_examples=80, deadline=None)
@given(data=st.data(), size=st.sampled_from([32, 63, 64, 224, 225]))
def test_cutouts_are_the_pixels_the_program_painted(data: st.DataObject, size: int) -> None:
    y, x = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    fill = data.draw(st.tuples(*[st.integers(10, 255)] * 3))
    painted, row = program_cutout(size, y, x, fill)
    cutout = cutouts_in_pixels(row, size, where="x")
    top, left, bottom, right = cutout.boxes[0].tolist()
    ours = np.full((size, size, 3), 9, np.uint8)
    ours[top:bottom, left:right] = cutout.fill[0]
    assert np.array_equal(ours, painted)


def test_wrong_view_sizes_and_colours_are_noticed() -> None:
    rows = np.concatenate([program_cutout(224, y, 100, (1, 2, 3))[1] for y in range(0, 224, 7)])
    with pytest.raises(LabelFileError, match="--output-size"):
        cutouts_in_pixels(rows, 256, where="x")
    for colour in (-1.0, 256.0, 0.5):
        row = np.array([[0.5, 0.5, 0.5, 0.5, colour, 0, 0]], np.float32)
        with pytest.raises(LabelFileError, match="colours"):
            cutouts_in_pixels(row, 32, where="x")


@pytest.mark.parametrize("crop", [(5, 0, 6, 10, 10, 10), (0, 9, 10, 2, 10, 10), (0, 0, 0, 10, 10, 10)])
def test_crops_on_whole_pixels_outside_the_image_are_refused(crop: Crop) -> None:
    with pytest.raises(ImageMismatchError, match="slot 0"):
        recovered(stored(crop), *crop[4:])
