from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from lpld_labels.errors import ImageReadError
from lpld_labels.render.decode import decode_image, image_size

HERE = Path("image")
WIDE = np.random.default_rng(0).integers(0, 65536, (6, 9, 4))
WIDE[0, :4] = np.array([0, 128, 65407, 65535])[:, None]


def rounded(values: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """The nearest of 256 levels: 65535 is odd, so that there are no ties."""
    return np.rint(values / 257).astype(np.int64)


def png16(values: npt.NDArray[np.integer], colour_type: int) -> bytes:
    """Return a PNG file of 16 bits a sample, written from its specification."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    )


def saved(image: Image.Image, file_format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


@pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (4, 2), (2, 3), (6, 4)])
def test_sixteen_bits_become_the_nearest_of_eight(colour_type: int, channels: int) -> None:
    values = WIDE[..., :channels]
    expected = rounded(values if channels > 2 else values[..., :1])[..., :3]
    found = decode_image(png16(values, colour_type), where=HERE)
    assert found.dtype == np.uint8
    assert np.array_equal(found, np.broadcast_to(expected, (6, 9, 3)))


def test_sixteen_bits_of_other_formats() -> None:
    grey = WIDE[..., 0].astype(np.uint16)
    expected = np.broadcast_to(rounded(grey)[..., None], (6, 9, 3))
    for compression in (None, "tiff_deflate"):
        data = saved(Image.fromarray(grey), "TIFF", compression=compression)
        assert np.array_equal(decode_image(data, where=HERE), expected)
    pgm = b"P5 9 6 65535\n" + grey.astype(">u2").tobytes()
    assert np.array_equal(decode_image(pgm, where=HERE), expected)
    colours = WIDE[..., :3].astype(np.uint16)
    ppm = b"P6 9 6 65535\n" + colours.astype(">u2").tobytes()
    assert np.array_equal(decode_image(ppm, where=HERE), rounded(colours))


@pytest.mark.parametrize(("kind", "said"), [("float32", "floating-point"), ("int32", "32 bits")])
def test_samples_without_a_range_are_refused(kind: str, said: str) -> None:
    data = saved(Image.fromarray(WIDE[..., 0].astype(kind)), "TIFF")
    for read in (decode_image, image_size):
        with pytest.raises(ImageReadError, match=rf"image: image samples are {said}.*convert it to 8 bits"):
            read(data, where=HERE)


def test_content_does_not_choose_another_decoder() -> None:
    gif = saved(Image.new("RGB", (4, 4)), "GIF")
    for read in (decode_image, image_size):
        with pytest.raises(ImageReadError, match=r"not an image \(JPEG, PNG"):
            read(gif, where=HERE)
    assert decode_image(saved(Image.new("RGB", (4, 4)), "PNG"), where=Path("a.jpg")).shape == (4, 4, 3)


def test_orientation_is_not_applied() -> None:
    turned = Image.new("RGB", (5, 3))
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(turned, "JPEG", exif=exif)
    assert decode_image(data, where=HERE).shape == (3, 5, 3)
    assert image_size(data, where=HERE) == (5, 3)
