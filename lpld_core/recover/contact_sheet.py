"""One picture of a run: a row per class, its images side by side, so that people can look."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lpld_labels.render.decoding import decode_image
from lpld_labels.render.image_folder import read_file

_GAP = 2
_BACKGROUND = (255, 255, 255)
_SCREEN = (1600, 1000)
_LARGEST = 130
"""Pixels of a screen, and of an image with its gap at most."""
_LETTERS = 14
_TITLE = 24
"""Pixels of a letter, and letters of a class name at most."""


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` numbers below `count`, evenly spread, first and last included."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()))


def contact_sheet(
    image_path: Callable[[int, int], Path],
    *,
    classes: Sequence[int],
    images: Sequence[int],
    names: Sequence[str],
) -> Image.Image:
    """Return the sheet: row r shows class classes[r] under its name, column k its image images[k].

    image_path: path of (class, number). names: of all classes. Images are enlarged or scaled down to what a
    screen has room for.
    """
    font = ImageFont.load_default(_LETTERS)
    titles = [textwrap.shorten(names[label], _TITLE, placeholder="...") for label in classes]
    margin = int(max(font.getlength(title) for title in titles)) + 2 * _GAP
    cell = min(
        _LARGEST,
        (_SCREEN[0] - margin - _GAP) // len(images),
        (_SCREEN[1] - _GAP) // len(classes),
    )
    sheet = Image.new("RGB", (margin + cell * len(images) + _GAP, cell * len(classes) + _GAP), _BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for row, label in enumerate(classes):
        pen.text((_GAP, row * cell + cell // 2), titles[row], fill="black", font=font, anchor="lm")
        for column, number in enumerate(images):
            path = image_path(label, number)
            tile = _scaled(Image.fromarray(decode_image(read_file(path), where=path)), cell - _GAP)
            sheet.paste(tile, (margin + column * cell, row * cell + _GAP))
    return sheet


def _scaled(image: Image.Image, side: int) -> Image.Image:
    """Return an image whose longer side is about `side`; small ones grow by whole pixels and stay sharp."""
    longest = max(image.size)
    if longest <= side:
        times = side // longest
        return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    image.thumbnail((side, side))
    return image


def png_bytes(sheet: Image.Image) -> bytes:
    """Return a sheet as a PNG file."""
    stream = io.BytesIO()
    sheet.save(stream, "PNG", optimize=True)
    return stream.getvalue()
