"""Photos to measure speed on: cut from those that packages carry, or taken from a folder of one's own."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path

from PIL import Image, ImageOps

from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.render.images import scan_image_folder

PACKAGED = (
    ("sklearn.datasets", "images/china.jpg"),
    ("sklearn.datasets", "images/flower.jpg"),
    ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
)
SMALLEST_CUT = 0.3
"""Least share of a packaged photo's shorter side that is cut out of it."""
DISTINCT = 96
"""Photos that differ; where more are wanted they come again under other names."""
PER_CLASS = 10


def add_images_option(parser: argparse.ArgumentParser) -> None:
    """Add --images to a benchmark that needs photos."""
    parser.add_argument(
        "--images", type=Path, help="folder of photos, one directory per class [default: cut from packages]"
    )


def photo_folder(folder: Path, *, side: int, count: int, images: Path | None = None) -> Path:
    """Write `count` square JPEG photos, ten to a class, and return the folder. images: where from."""
    sources = _packaged() if images is None else _own(images)
    photos = [_jpeg(photo, side) for photo in islice(sources, min(count, DISTINCT))]
    for number in range(count):
        name = f"{number // PER_CLASS:03d}"
        target = folder / f"new{name}" / f"class{name}_id{number % PER_CLASS:03d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(photos[number % len(photos)])
    return folder


def _packaged() -> Iterator[Image.Image]:
    """Yield squares cut at random from the packages' photos, without end."""
    photos = []
    for package, path in PACKAGED:
        with files(package).joinpath(path).open("rb") as file:
            photos.append(Image.open(file).convert("RGB"))
    for number, photo in enumerate(cycle(photos)):
        random = keyed_generator(number)
        side = int(min(photo.size) * random.uniform(SMALLEST_CUT, 1.0))
        left, top = (int(random.integers(0, length - side + 1)) for length in photo.size)
        yield photo.crop((left, top, left + side, top + side))


def _own(folder: Path) -> Iterator[Image.Image]:
    """Yield a folder's photos again and again."""
    for path in cycle(scan_image_folder(folder, decode=False).paths):
        with Image.open(folder / path) as image:
            yield image.convert("RGB")


def _jpeg(photo: Image.Image, side: int) -> bytes:
    """Return the middle square of a photo in the size asked for."""
    file = io.BytesIO()
    ImageOps.fit(photo, (side, side), Image.Resampling.BICUBIC).save(file, "JPEG", quality=95)
    return file.getvalue()
