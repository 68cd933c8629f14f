"""Image files become pixels: 8-bit RGB, as SPEC.md says.

EXIF orientation is not applied: a view shows rows as the file stores them, as torchvision's loader does.
Samples of 16 bits are scaled to 8; files whose samples have no agreed range (32 bits, floats) are refused.

Files are not trusted. Only this module calls decoders: with a fixed list of formats, within limits, and all
their errors become ImageReadError. The size in the header is checked before anything is decoded, and all
threads together never hold more pixels than one image may have.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from lpld_labels.errors import ImageReadError, InvalidArgumentError, LabelPoolError

FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")
"""The only decoders that are used, whatever a file's content asks for."""
_WIDE = ("PNG", "PPM")
"""Formats of at most 16 bits, which Pillow may hold in 32."""
_NO_RANGE = {"I": "32 bits", "F": "floating-point numbers"}
_JPEG = ("JPEG", "MPO")
_SCAN = b"\xff\xda"
_STRIP_PIXELS = 1 << 20
_Box = tuple[int, int, int, int]
_OTHER_BYTE = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}


def decode_image(data: bytes, *, where: Path | str) -> npt.NDArray[np.uint8]:
    """Decode an image file to uint8 [H, W, 3]."""
    with _readable(where):
        image = _opened(data, where)
        width, height = image.size
        with room_for(width * height), contextlib.closing(image):
            part = _eight_bits(image, data)
            pixels = np.empty((height, width, 3), np.uint8)
            # In strips, so that a large image is not in memory twice.
            rows = max(1, _STRIP_PIXELS // width)
            for top in range(0, height, rows):
                bottom = min(top + rows, height)
                pixels[top:bottom] = np.asarray(part((0, top, width, bottom)).convert("RGB"))
            return pixels


def image_size(data: bytes, *, where: Path | str) -> tuple[int, int]:
    """Return width and height of an image file from its header."""
    with _readable(where), _opened(data, where) as image:
        width, height = image.size
        return width, height


def _opened(data: bytes, where: Path | str) -> ImageFile:
    most = max_pixels()
    if Image.MAX_IMAGE_PIXELS is not None and most > Image.MAX_IMAGE_PIXELS:
        # Raise Pillow's own limit to the one that the environment allows.
        Image.MAX_IMAGE_PIXELS = most
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    if image.mode in _NO_RANGE and image.format not in _WIDE:
        raise ImageReadError(
            f"image samples are {_NO_RANGE[image.mode]}",
            where=where,
            expected="8 or 16 bits",
            hint="convert it to 8 bits: what is black and what is white in it is not known here",
        )
    if image.width * image.height > most:
        raise too_many_pixels(where, f"{image.width} x {image.height}")
    if image.format in _JPEG and data.count(_SCAN) > MAX_SCANS:
        raise ImageReadError(
            "JPEG has too many scans",
            where=where,
            expected=f"at most {MAX_SCANS}",
            got=data.count(_SCAN),
            hint="replace or remove this file",
        )
    # Alpha is ignored; Pillow would warn about a palette's.
    image.info.pop("transparency", None)
    return image


def _eight_bits(image: ImageFile, data: bytes) -> Callable[[_Box], Image.Image]:
    """Return what gives a part of an image, with at most 8 bits a sample."""
    if image.mode == "I" or image.mode.startswith("I;16"):
        return lambda box: Image.fromarray(_scaled(np.asarray(image.crop(box))))
    raw = {_raw_mode(tile) for tile in image.tile}
    if not any(";16" in mode for mode in raw):
        # Not cropped where all is wanted: that would be one copy more.
        return lambda box: image if box == (0, 0, *image.size) else image.crop(box)
    if raw == {"LA;16B"}:
        # Grey with alpha: read as four bytes, these are high and low byte of the grey, then of alpha.
        parts = _read_as(image, "RGBA")

        def grey(box: _Box) -> Image.Image:
            high, low = np.moveaxis(np.asarray(parts.crop(box)), -1, 0)[:2]
            return Image.fromarray(_scaled(_joined(high, low)))

        return grey
    # Pillow keeps the high byte of a colour; told the wrong byte order, it keeps the low one.
    other = _read_as(Image.open(io.BytesIO(data), formats=FORMATS), None)

    def colour(box: _Box) -> Image.Image:
        high, low = image.crop(box), other.crop(box)
        values = _scaled(_joined(np.asarray(high), np.asarray(low)))
        return Image.frombytes(image.mode, high.size, values.tobytes())

    return colour


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
def _readable(where: Path | str) -> Iterator[None]:
    """Turn Pillow's errors into ImageReadError."""
    try:
        yield
    except LabelPoolError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise too_many_pixels(where, str(error)) from None
    except MemoryError:
        raise ImageReadError("image needs more memory than there is", where=where) from None
    except Exception as error:  # noqa: BLE001 - decoders raise nearly everything when a file is broken
        unknown = isinstance(error, UnidentifiedImageError)
        problem = f"not an image ({', '.join(FORMATS)})" if unknown else f"broken image: {error}"
        raise ImageReadError(problem, where=where, hint="replace or remove this file") from None


MAX_PIXELS = 40_000_000
"""Of one image. Decoding takes at most 20 bytes a pixel (WebP; other formats 7 to 13), so 0.8 GB."""
VARIABLE = "LPLD_MAX_IMAGE_PIXELS"
"""The environment variable that sets another number."""
BYTES_PER_PIXEL = 4
"""Of a file, for each pixel that is allowed: an uncompressed image with alpha."""
MAX_SCANS = 50
"""Of a progressive JPEG. Programs write 10 to 20; each is a pass over all pixels, however few its bytes."""


def max_pixels() -> int:
    """Return how many pixels an image may have."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return MAX_PIXELS
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise InvalidArgumentError(
            f"environment variable {VARIABLE} is wrong", expected="a number of pixels", got=repr(text)
        )
    return int(text)


def max_bytes() -> int:
    """Return how many bytes an image file may have."""
    return BYTES_PER_PIXEL * max_pixels()


def too_many_pixels(where: Path | str, size: object) -> ImageReadError:
    """Return the error for an image that is too large."""
    return ImageReadError(
        "image has too many pixels",
        where=where,
        expected=f"at most {max_pixels():,}",
        got=size,
        hint=f"scale it down, or allow more with the environment variable {VARIABLE}",
    )


class _Room:
    """Limits the pixels of images that are being decoded at once."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = 0

    @contextlib.contextmanager
    def taken(self, pixels: int) -> Iterator[None]:
        """Wait until so many pixels may be decoded; a single image always may."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + pixels <= max_pixels())
            self._taken += pixels
        try:
            yield
        finally:
            with self._changed:
                self._taken -= pixels
                self._changed.notify_all()


_room = _Room()


def room_for(pixels: int) -> contextlib.AbstractContextManager[None]:
    """Return a context in which an image of so many pixels may be decoded."""
    return _room.taken(pixels)


def _begin_anew() -> None:
    """Reset in a forked process: the parent's threads do not exist there."""
    global _room  # noqa: PLW0603
    _room = _Room()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
