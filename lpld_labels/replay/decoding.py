"""Image files become pixels: 8-bit RGB, as SPEC.md says.

EXIF orientation is not applied: a view shows rows as the file stores them, as torchvision's loader does.
Samples of 16 bits are scaled to 8; files whose samples have no agreed range (32 bits, floats) are refused.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from lpld_labels.errors import ImageReadError

FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")
"""The only decoders that are used, whatever a file's content asks for."""
_WIDE = ("PNG", "PPM")
"""Formats of at most 16 bits, which Pillow may hold in 32."""
_NO_RANGE = {"I": "32 bits", "F": "floating-point numbers"}
_OTHER_BYTE = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}


def decode_image(data: bytes, *, where: Path) -> npt.NDArray[np.uint8]:
    """Decode an image file to uint8 [H, W, 3]."""
    with _readable(where), _opened(data, where) as image:
        # A writable copy: torch warns of arrays that are not.
        return np.array(_eight_bits(image, data).convert("RGB"))


def image_size(data: bytes, *, where: Path) -> tuple[int, int]:
    """Return width and height of an image file from its header."""
    with _readable(where), _opened(data, where) as image:
        width, height = image.size
        return width, height


def _opened(data: bytes, where: Path) -> ImageFile:
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    if image.mode in _NO_RANGE and image.format not in _WIDE:
        raise ImageReadError(
            f"image samples are {_NO_RANGE[image.mode]}",
            where=where,
            expected="8 or 16 bits",
            hint="convert it to 8 bits: what is black and what is white in it is not known here",
        )
    return image


def _eight_bits(image: ImageFile, data: bytes) -> Image.Image:
    """Return an image of at most 8 bits a sample; one that has no more is returned as it is."""
    if image.mode == "I" or image.mode.startswith("I;16"):
        return Image.fromarray(_scaled(np.asarray(image)))
    raw = {_raw_mode(tile) for tile in image.tile}
    if not any(";16" in mode for mode in raw):
        return image
    if raw == {"LA;16B"}:
        # Grey with alpha: read as four bytes, these are high and low byte of the grey, then of alpha.
        parts = np.asarray(_read_as(image, "RGBA"))
        return Image.fromarray(_scaled(_joined(parts[..., 0], parts[..., 1])))
    # Pillow keeps the high byte of a colour; told the wrong byte order, it keeps the low one.
    low = _read_as(Image.open(io.BytesIO(data), formats=FORMATS), None)
    return Image.frombytes(
        image.mode, image.size, _scaled(_joined(np.asarray(image), np.asarray(low))).tobytes()
    )


def _raw_mode(tile: Any) -> str:
    """Return how a part of the file lays out its samples."""
    arguments = tile[3]
    return str(arguments if isinstance(arguments, str) else (arguments or ("",))[0])


def _read_as(image: ImageFile, raw: str | None) -> ImageFile:
    """Let an image that is not loaded yet be read in another raw mode: the given, or the other byte order."""
    tiles: list[Any] = []
    for tile in image.tile:
        mode = raw or _raw_mode(tile)[:-1] + _OTHER_BYTE[_raw_mode(tile)[-1]]
        arguments = mode if isinstance(tile[3], str) else (mode, *(tile[3] or ("",))[1:])
        tiles.append((*tile[:3], arguments))
    image.tile = tiles
    return image


def _joined(high: npt.NDArray[np.uint8], low: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    return high.astype(np.uint32) * 256 + low


def _scaled(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return samples of 16 bits as the nearest of 8: floor((v * 255 + 32767) / 65535)."""
    return ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)


@contextlib.contextmanager
def _readable(where: Path) -> Iterator[None]:
    """Turn what Pillow says of a bad file into one clear ImageReadError."""
    try:
        yield
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        unknown = isinstance(error, UnidentifiedImageError)
        problem = f"not an image ({', '.join(FORMATS)})" if unknown else f"broken image: {error}"
        raise ImageReadError(problem, where=where, hint="replace or remove this file") from None
