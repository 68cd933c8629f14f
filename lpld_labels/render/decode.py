"""Decode image files to 8-bit RGB, as SPEC.md defines.

EXIF orientation is ignored, as in torchvision's loader. Samples of 16 bits are scaled to 8; files whose
samples have no defined range (32 bits, floats) are refused.

Files are untrusted. Only this module calls decoders: with a fixed list of formats and within limits. All
decoder errors become ImageReadError. The size in the header is checked before decoding, and all threads
together never decode more pixels at once than the limit for a single image.
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

FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")  # The only decoders allowed.
MAX_PIXELS = 40_000_000  # Per image. Decoding takes at most 20 bytes per pixel (WebP), so 0.8 GB.
VARIABLE = "LPLD_MAX_IMAGE_PIXELS"  # Environment variable that overrides MAX_PIXELS.
BYTES_PER_PIXEL = 4  # Maximum file bytes per allowed pixel: the size of an uncompressed pixel with alpha.
MAX_SCANS = 50  # Per progressive JPEG. Programs write 10 to 20 scans; each scan is a pass over all pixels.
_WIDE = ("PNG", "PPM")  # Formats with samples of at most 16 bits, which Pillow may store in 32 bits.
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
        with pixel_limit.room_for(width * height), contextlib.closing(image):
            part = _eight_bits(image, data)
            pixels = np.empty((height, width, 3), np.uint8)
            # Convert in strips, so that memory does not hold a large image twice.
            rows = max(1, _STRIP_PIXELS // width)
            for top in range(0, height, rows):
                bottom = min(top + rows, height)
                pixels[top:bottom] = np.asarray(part((0, top, width, bottom)).convert("RGB"))
            return pixels


def image_size(data: bytes, *, where: Path | str) -> tuple[int, int]:
    """Return (width, height) of an image file, read from its header."""
    with _readable(where), _opened(data, where) as image:
        width, height = image.size
        return width, height


def _opened(data: bytes, where: Path | str) -> ImageFile:
    most = max_pixels()
    if Image.MAX_IMAGE_PIXELS is not None and most > Image.MAX_IMAGE_PIXELS:
        # Raise Pillow's own limit to the limit that the environment variable sets.
        Image.MAX_IMAGE_PIXELS = most
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    if image.mode in _NO_RANGE and image.format not in _WIDE:
        raise ImageReadError(
            f"image samples are {_NO_RANGE[image.mode]}, so the values of black and white are unknown",
            where=where,
            expected="8 or 16 bits",
            hint="convert the image to 8 bits, with the range you intend",
        )
    if image.width * image.height > most:
        raise _too_many_pixels(where, f"{image.width} x {image.height}")
    if image.format in _JPEG and data.count(_SCAN) > MAX_SCANS:
        raise ImageReadError(
            "JPEG has too many scans",
            where=where,
            expected=f"at most {MAX_SCANS}",
            got=data.count(_SCAN),
            hint="replace or remove this file",
        )
    # Alpha is ignored. Without this line, Pillow would warn about transparency in a palette.
    image.info.pop("transparency", None)
    return image


def _eight_bits(image: ImageFile, data: bytes) -> Callable[[_Box], Image.Image]:
    """Return a function that crops the image to a box, with samples of at most 8 bits."""
    if image.mode == "I" or image.mode.startswith("I;16"):
        return lambda box: Image.fromarray(_scaled(np.asarray(image.crop(box))))
    raw = {_raw_mode(tile) for tile in image.tile}
    if not any(";16" in mode for mode in raw):
        # Cropping to the full size would only add a copy.
        return lambda box: image if box == (0, 0, *image.size) else image.crop(box)
    if raw == {"LA;16B"}:
        # Grey with alpha, read as RGBA: the four channels are the high and low bytes of grey and of alpha.
        parts = _read_as(image, "RGBA")

        def grey(box: _Box) -> Image.Image:
            samples = np.asarray(parts.crop(box)).astype(np.uint32)
            return Image.fromarray(_scaled(samples[:, :, 0] * 256 + samples[:, :, 1]))

        return grey
    # Pillow keeps the high byte of a colour; if the byte order is swapped, it keeps the low byte.
    other = _read_as(Image.open(io.BytesIO(data), formats=FORMATS), None)

    def colour(box: _Box) -> Image.Image:
        high, low = image.crop(box), other.crop(box)
        values = _scaled(np.asarray(high).astype(np.uint32) * 256 + np.asarray(low))
        return Image.frombytes(image.mode, high.size, values.tobytes())

    return colour


def _raw_mode(tile: Any) -> str:
    arguments = tile[3]
    return str(arguments if isinstance(arguments, str) else (arguments or ("",))[0])


def _read_as(image: ImageFile, raw: str | None) -> ImageFile:
    """Set the raw mode of an image that is not loaded yet. raw: None for its own mode with swapped bytes."""
    tiles: list[Any] = []
    for tile in image.tile:
        mode = raw or _raw_mode(tile)[:-1] + _OTHER_BYTE[_raw_mode(tile)[-1]]
        arguments = mode if isinstance(tile[3], str) else (mode, *(tile[3] or ("",))[1:])
        tiles.append((*tile[:3], arguments))
    image.tile = tiles
    return image


def _scaled(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Round samples of 16 bits to 8: floor((v * 255 + 32767) / 65535)."""
    return ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)


@contextlib.contextmanager
def _readable(where: Path | str) -> Iterator[None]:
    try:
        yield
    except LabelPoolError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many_pixels(where, str(error)) from None
    except MemoryError:
        raise ImageReadError("not enough memory to decode this image", where=where) from None
    except Exception as error:  # noqa: BLE001 - decoders raise nearly everything when a file is broken
        unknown = isinstance(error, UnidentifiedImageError)
        problem = f"not an image ({', '.join(FORMATS)})" if unknown else f"broken image: {error}"
        raise ImageReadError(problem, where=where, hint="replace or remove this file") from None


def max_pixels() -> int:
    """Return the maximum number of pixels of an image."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return MAX_PIXELS
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise InvalidArgumentError(
            f"environment variable {VARIABLE} is invalid", expected="a number of pixels", got=repr(text)
        )
    return int(text)


def _too_many_pixels(where: Path | str, size: object) -> ImageReadError:
    return ImageReadError(
        "image has too many pixels",
        where=where,
        expected=f"at most {max_pixels():,}",
        got=size,
        hint=f"scale the image down, or allow more with the environment variable {VARIABLE}",
    )


class PixelLimit:
    """Limits how many pixels all threads together decode at the same time."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._changed = threading.Condition()
        self._taken = 0

    @contextlib.contextmanager
    def room_for(self, pixels: int) -> Iterator[None]:
        """Wait until an image of this many pixels may be decoded. A single image never waits."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + pixels <= max_pixels())
            self._taken += pixels
        try:
            yield
        finally:
            with self._changed:
                self._taken -= pixels
                self._changed.notify_all()


pixel_limit = PixelLimit()
if hasattr(os, "register_at_fork"):
    # The parent's threads do not exist in a forked process, so they would never release their pixels.
    os.register_at_fork(after_in_child=pixel_limit.reset)
