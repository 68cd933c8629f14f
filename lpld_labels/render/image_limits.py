"""How large an image may be, and how many of them are decoded at once.

A header of a few bytes can promise billions of pixels. The bound is compared with the header before anything
is decoded, and threads that decode share it: together they never hold more pixels than one image may have.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from lpld_labels.errors import ImageReadError, InvalidArgumentError

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
    """Room for the pixels of images that are being decoded; who finds none waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = 0

    @contextlib.contextmanager
    def taken(self, pixels: int) -> Iterator[None]:
        """Take so much room; an image that is alone always finds some."""
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
    """Forget in a forked process what threads of its parent hold: they are not here to give it back."""
    global _room  # noqa: PLW0603
    _room = _Room()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
