"""One picture of a run: a row per class, its images side by side, so that people can look."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image


_GAP = 2
_BACKGROUND = (255, 255, 255)


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` numbers below `count`, evenly spread, first and last included."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()))


def contact_sheet(
    image_path: Callable[[int, int], Path],
    *,
    classes: Sequence[int],
    images: Sequence[int],
    largest_side: int = 96,
) -> Image.Image:
    """Return the sheet: row r shows class classes[r], column k its image images[k].

    image_path: path of (class, number). largest_side: images above it are scaled down to it.
    """
    sheet = None
    for row, label in enumerate(classes):
        for column, number in enumerate(images):
            with Image.open(image_path(label, number)) as opened:
                tile = opened.convert("RGB")
            tile.thumbnail((largest_side, largest_side))
            if sheet is None:
                cell = (tile.width + _GAP, tile.height + _GAP)
                sheet = Image.new(
                    "RGB", (cell[0] * len(images) + _GAP, cell[1] * len(classes) + _GAP), _BACKGROUND
                )
            sheet.paste(tile, (column * cell[0] + _GAP, row * cell[1] + _GAP))
    return sheet or Image.new("RGB", (1, 1), _BACKGROUND)


def png_bytes(sheet: Image.Image) -> bytes:
    """Return a sheet as a PNG file."""
    stream = io.BytesIO()
    sheet.save(stream, "PNG", optimize=True)
    return stream.getvalue()
