"""Fuzzed images: small files of every format that is read, and of some that are not, with changed bytes."""

import contextlib
import io
import random
import struct
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, features

from lpld_labels.errors import LabelPoolError
from lpld_labels.render.decode import decode_image, image_size

WHERE = Path("image")


@lru_cache
def seeds() -> tuple[bytes, ...]:
    """Return valid files to start from."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (24, 20, 3), np.uint8)
    smooth = np.add.outer(np.arange(24) * 5, np.arange(20) * 6)[..., None].repeat(3, -1).astype(np.uint8)
    colour, grey = Image.fromarray(noise), Image.fromarray(smooth).convert("L")
    wide = Image.fromarray(rng.integers(0, 65536, (24, 20), np.uint16))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "x" * 50
    files = [
        _saved(colour, "JPEG", exif=exif),
        _saved(Image.fromarray(smooth), "JPEG", progressive=True),
        _saved(colour.convert("CMYK"), "JPEG"),
        _saved(colour, "PNG"),
        _saved(colour.convert("P"), "PNG", transparency=b"\x00\x80"),
        _saved(colour.convert("RGBA"), "PNG"),
        _saved(grey.convert("1"), "PNG"),
        _saved(wide, "PNG"),
        _saved(colour, "PPM"),
        b"P3 2 2 255 " + b"1 2 3 " * 4,
        b"P6 4 4 65535 " + bytes(96),
        b"Pf 2 2 -1.0 " + bytes(16),
        _saved(grey, "BMP"),
        _saved(colour.convert("P"), "BMP"),
        _saved(colour, "WEBP"),
        _saved(colour.convert("RGBA"), "WEBP", lossless=True),
        _saved(colour, "WEBP", save_all=True, append_images=[colour]),
        _saved(colour, "GIF"),
        _saved(colour, "ICO"),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n",
    ]
    files += [
        _saved(colour, "TIFF", compression=c) for c in ("raw", "tiff_lzw", "tiff_deflate", "jpeg", "packbits")
    ]
    files += [_saved(wide, "TIFF"), _saved(grey.convert("1"), "TIFF", compression="group4")]
    if "avif" in features.modules and features.check("avif"):
        files.append(_saved(colour, "AVIF"))
    return tuple(files)


def _saved(image: Image.Image, file_format: str, **options: object) -> bytes:
    sink = io.BytesIO()
    image.save(sink, file_format, **options)
    return sink.getvalue()


def crafted_image(number: int, *, seed: int) -> bytes:
    """Return the image file of this number."""
    draw = random.Random(f"{seed} image {number}")
    data = bytearray(seeds()[number % len(seeds())])
    for _ in range(draw.choice([1, 1, 2, 4, 16])):
        # Headers decide the most.
        place = draw.randrange(min(len(data), 64)) if draw.random() < 0.5 else draw.randrange(len(data))
        action = draw.random()
        if action < 0.5:
            data[place] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, data[place] ^ (1 << draw.randrange(8))])
        elif action < 0.7:
            value = draw.choice([0, 1, 255, 65535, 2**31 - 1, 2**32 - 1, 20_000, 6000])
            form = draw.choice(["<H", ">H", "<I", ">I"])
            part = struct.pack(form, value % (1 << 8 * struct.calcsize(form)))
            data[place : place + len(part)] = part
        elif action < 0.8:
            del data[place : place + draw.randrange(1, 30)]
        elif action < 0.9:
            other = draw.choice(seeds())
            start = draw.randrange(len(other))
            data[place:place] = other[start : start + draw.randrange(60)]
        else:
            del data[max(place, 8) :]
        if not data:
            break
    return bytes(data)


def use_image(data: bytes) -> None:
    """Look at a file's header, then decode it."""
    with contextlib.suppress(LabelPoolError):
        image_size(data, where=WHERE)
    decode_image(data, where=WHERE)
