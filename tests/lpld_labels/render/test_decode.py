import io
import os
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from torchvision.datasets.folder import default_loader

from lpld_labels.errors import ImageReadError, InvalidArgumentError
from lpld_labels.render import decode
from lpld_labels.render.decode import MAX_SCANS, VARIABLE, decode_image, image_size, pixel_limit
from tests.factories import run_python

HERE = Path("image")
WIDE = np.random.default_rng(0).integers(0, 65536, (6, 9, 4))
WIDE[0, :4] = np.array([0, 128, 65407, 65535])[:, None]


def rounded(values: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Return the nearest of 256 levels: 65535 is odd, so there are no ties."""
    return np.rint(values / 257).astype(np.int64)


def png(width: int, height: int, bits: int, colour_type: int, data: bytes) -> bytes:
    """Return a PNG file, written from its specification. data: its compressed rows."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    chunks = (chunk(b"IHDR", header), chunk(b"IDAT", data), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def black_png(width: int, height: int) -> bytes:
    packer = zlib.compressobj(9)
    row = bytes(1 + -(-width // 8))
    packed = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    return png(width, height, 1, 0, packed)


def saved(image: Image.Image, file_format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


@pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (4, 2), (2, 3), (6, 4)])
def test_sixteen_bits_become_the_nearest_of_eight(colour_type: int, channels: int) -> None:
    values = WIDE[..., :channels]
    expected = rounded(values if channels > 2 else values[..., :1])[..., :3]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    found = decode_image(png(9, 6, 16, colour_type, zlib.compress(rows)), where=HERE)
    assert found.dtype == np.uint8
    assert np.array_equal(found, np.broadcast_to(expected, (6, 9, 3)))


def test_sixteen_bits_of_other_formats() -> None:
    grey, colours = WIDE[..., 0].astype(np.uint16), WIDE[..., :3].astype(np.uint16)
    files = [saved(Image.fromarray(grey), "TIFF", compression=how) for how in (None, "tiff_deflate")]
    files.append(b"P5 9 6 65535\n" + grey.astype(">u2").tobytes())
    for data in files:
        assert np.array_equal(
            decode_image(data, where=HERE), np.broadcast_to(rounded(grey)[..., None], (6, 9, 3))
        )
    ppm = b"P6 9 6 65535\n" + colours.astype(">u2").tobytes()
    assert np.array_equal(decode_image(ppm, where=HERE), rounded(colours))


def test_large_images_are_converted_in_strips_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    files = [saved(Image.fromarray(rng.integers(0, 65536, (37, 23), np.uint16)), "PNG")]
    for mode in ("RGB", "L", "P", "RGBA", "CMYK"):
        picture = Image.fromarray(rng.integers(0, 256, (37, 23, 3), np.uint8)).convert(mode)
        files.append(saved(picture, "TIFF" if mode == "CMYK" else "PNG"))
    files.append(b"P6 23 37 65535\n" + rng.integers(0, 256, 37 * 23 * 6, np.uint8).tobytes())
    whole = [decode_image(data, where=HERE) for data in files]
    monkeypatch.setattr(decode, "_STRIP_PIXELS", 100)
    for data, expected in zip(files, whole, strict=True):
        assert np.array_equal(decode_image(data, where=HERE), expected)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "LA", "1", "CMYK"])
def test_images_become_rgb_as_with_torchvision(tmp_path: Path, mode: str) -> None:
    levels = np.arange(48).reshape(6, 8) * 5
    image = Image.fromarray(np.stack([levels, levels // 2, 255 - levels], 2).astype(np.uint8)).convert(mode)
    path = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    image.save(path)
    ours = decode_image(path.read_bytes(), where=path)
    assert ours.shape == (6, 8, 3)
    assert np.array_equal(ours, np.asarray(default_loader(str(path))))


def test_palettes_with_alpha_and_orientation() -> None:
    image = Image.new("P", (4, 4))
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.putpixel((1, 1), 1)
    data = saved(image, "PNG", transparency=b"\x00\x80")  # no warning
    assert decode_image(data, where=HERE)[1, 1].tolist() == [200, 100, 50]
    exif = Image.Exif()
    exif[0x0112] = 6  # not applied
    data = saved(Image.new("RGB", (5, 3)), "JPEG", exif=exif)
    assert decode_image(data, where=HERE).shape == (3, 5, 3)
    assert image_size(data, where=HERE) == (5, 3)


@pytest.mark.parametrize(("kind", "words"), [("float32", "floating-point"), ("int32", "32 bits")])
def test_samples_without_a_range_are_refused(kind: str, words: str) -> None:
    data = saved(Image.fromarray(WIDE[..., 0].astype(kind)), "TIFF")
    for read in (decode_image, image_size):
        with pytest.raises(ImageReadError, match=rf"image: image samples are {words}.*convert the image"):
            read(data, where=HERE)


@pytest.mark.parametrize("file_format", ["GIF", "AVIF"])
def test_other_formats_are_not_read_whatever_the_name(file_format: str) -> None:
    if file_format == "AVIF":
        pytest.importorskip("PIL._avif")
    data = saved(Image.new("RGB", (8, 8)), file_format)
    for read in (decode_image, image_size):
        with pytest.raises(ImageReadError, match=r"not an image \(JPEG, PNG"):
            read(data, where=Path("a.jpg"))
    assert decode_image(saved(Image.new("RGB", (4, 4)), "PNG"), where=Path("a.jpg")).shape == (4, 4, 3)


@pytest.mark.parametrize("error", [KeyError("x"), struct.error("x"), AttributeError(), EOFError()])
def test_any_error_of_a_decoder_names_the_file(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Image, "open", broken)
    with pytest.raises(ImageReadError, match="image: broken image"):
        decode_image(b"", where=HERE)


def test_too_many_pixels_are_refused_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    data = black_png(13_305, 13_305)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    for read in (decode_image, image_size):
        with pytest.raises(ImageReadError, match=rf"13305 x 13305.*{VARIABLE}"):
            read(data, where=HERE)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(ImageReadError, match=rf"too many pixels.*{VARIABLE}"):
        decode_image(data, where=HERE)
    data = black_png(40, 30)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    monkeypatch.setenv(VARIABLE, "1199")
    with pytest.raises(ImageReadError, match=r"at most 1,199, got .*1200 pixels"):
        decode_image(data, where=HERE)
    monkeypatch.setenv(VARIABLE, "1200")
    assert decode_image(data, where=HERE).shape == (30, 40, 3)
    monkeypatch.setenv(VARIABLE, "many")
    with pytest.raises(InvalidArgumentError, match=f"{VARIABLE} is invalid"):
        decode_image(data, where=HERE)


def test_scans_of_a_jpeg_are_counted() -> None:
    whole = saved(Image.new("RGB", (64, 64), (9, 99, 200)), "JPEG", progressive=True)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    scans = whole.count(b"\xff\xda")
    assert decode_image(whole[:-2] + last * (MAX_SCANS - scans) + whole[-2:], where=HERE).shape == (64, 64, 3)
    with pytest.raises(ImageReadError, match="too many scans"):
        decode_image(whole[:-2] + last * (MAX_SCANS - scans + 1) + whole[-2:], where=HERE)


def test_threads_share_the_room_for_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "100")
    entered = threading.Event()

    def second() -> None:
        with pixel_limit.room_for(60):
            entered.set()

    thread = threading.Thread(target=second)
    with pixel_limit.room_for(60):
        thread.start()
        assert not entered.wait(0.1)
        if os.fork() == 0:
            # A forked process has no thread that would give room back.
            with pixel_limit.room_for(60):
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    assert entered.wait(10)
    thread.join()
    with pixel_limit.room_for(1000):
        pass


LARGE = """
import resource, sys
from pathlib import Path
from lpld_labels.render import images as image_folder

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
image_folder._THREADS = 8
image_folder.scan_image_folder(Path(sys.argv[1]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_large_images_are_not_decoded_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "class0").mkdir()
    data = black_png(6324, 6324)
    for number in range(4):
        (tmp_path / "class0" / f"{number}.png").write_bytes(data)
    # One alone takes 160 MB of samples and 120 MB of pixels.
    assert int(run_python(LARGE, tmp_path).stdout) < 400_000_000
