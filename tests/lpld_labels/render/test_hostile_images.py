"""Images and image folders made to do harm: nothing runs, nothing hangs, memory stays within its bound."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import tempfile
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lpld_labels.errors import ImageMismatchError, ImageReadError, InvalidArgumentError
from lpld_labels.render import decode as decoding
from lpld_labels.render.decode import MAX_SCANS, VARIABLE, decode_image, image_size, pixel_limit
from lpld_labels.render.images import FolderImages, check_images, list_images, scan_image_folder
from tests.lpld_labels.render.pictures import make_folder

HERE = Path("image")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "images")


def saved(image: Image.Image, file_format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def black_png(width: int, height: int) -> bytes:
    """Return a large image of a few kB."""
    packer = zlib.compressobj(9)
    row = bytes(1 + -(-width // 8))
    packed = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def test_postscript_does_not_start_ghostscript(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = folder.parent / "ghostscript ran"
    programs = folder.parent / "programs"
    programs.mkdir()
    for name in ("gs", "gswin64c"):
        (programs / name).write_text(f"#!/bin/sh\ntouch '{flag}'\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    (folder / "class0" / "x.jpg").write_bytes(postscript)
    with pytest.raises(ImageReadError, match=r"class0/x.jpg: not an image \(JPEG"):
        scan_image_folder(folder)
    assert not flag.exists()


def test_avif_is_not_read() -> None:
    pytest.importorskip("PIL._avif")
    for read in (decode_image, image_size):
        with pytest.raises(ImageReadError, match="not an image"):
            read(saved(Image.new("RGB", (8, 8)), "AVIF"), where=HERE)


@pytest.mark.parametrize(
    "error", [KeyError("x"), IndexError(), struct.error("x"), AttributeError(), EOFError()]
)
def test_whatever_a_decoder_raises_names_the_file(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Image, "open", broken)
    with pytest.raises(ImageReadError, match="image: broken image"):
        decode_image(b"", where=HERE)


def test_a_palette_with_alpha_is_no_reason_to_warn() -> None:
    image = Image.new("P", (4, 4))
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.putpixel((1, 1), 1)
    data = saved(image, "PNG", transparency=b"\x00\x80")
    assert decode_image(data, where=HERE)[1, 1].tolist() == [200, 100, 50]


def test_too_many_pixels_are_refused_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    data = black_png(13_305, 13_305)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    for read in (decode_image, image_size):
        with pytest.raises(ImageReadError, match=rf"13305 x 13305.*{VARIABLE}"):
            read(data, where=HERE)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ImageReadError, match=rf"too many pixels.*{VARIABLE}"):
        decode_image(data, where=HERE)


def test_the_bound_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    data = black_png(40, 30)
    monkeypatch.setenv(VARIABLE, "1199")
    with pytest.raises(ImageReadError, match=r"at most 1,199, got .*1200 pixels"):
        decode_image(data, where=HERE)
    monkeypatch.setenv(VARIABLE, "1200")
    assert decode_image(data, where=HERE).shape == (30, 40, 3)
    monkeypatch.setenv(VARIABLE, "many")
    with pytest.raises(InvalidArgumentError, match=f"{VARIABLE} is wrong"):
        decode_image(data, where=HERE)


def test_large_files_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (folder / "class0" / "sparse.png").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ImageReadError, match=rf"sparse.png: cannot read image: it has .* bytes.*{VARIABLE}"):
        scan_image_folder(folder)


def test_scans_of_a_jpeg_are_counted() -> None:
    whole = saved(Image.new("RGB", (64, 64), (9, 99, 200)), "JPEG", progressive=True)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    scans = whole.count(b"\xff\xda")
    assert decode_image(whole[:-2] + last * (MAX_SCANS - scans) + whole[-2:], where=HERE).shape == (64, 64, 3)
    with pytest.raises(ImageReadError, match="too many scans"):
        decode_image(whole[:-2] + last * (MAX_SCANS - scans + 1) + whole[-2:], where=HERE)


def test_threads_share_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
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
    done = subprocess.run([sys.executable, "-c", LARGE, tmp_path], capture_output=True, text=True, check=True)
    # One alone takes 160 MB of samples and 120 MB of pixels.
    assert int(done.stdout) < 400_000_000


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_is_no_file_is_refused_at_once(folder: Path, kind: str) -> None:
    table = scan_image_folder(folder)
    victim = folder / "class1" / "image02.png"
    victim.unlink()
    if kind == "pipe":
        os.mkfifo(victim)
    elif kind == "device":
        victim.symlink_to("/dev/zero")
    else:
        victim.mkdir()
    with pytest.raises(ImageMismatchError, match=r"class1/image02.png: image 6 .* is missing"):
        check_images(FolderImages(folder, table))
    if kind != "directory":
        with pytest.raises(
            ImageReadError, match=r"image02.png: cannot read image: it is a pipe, a socket or"
        ):
            scan_image_folder(folder)


def test_a_loop_of_links_is_named(folder: Path) -> None:
    (folder / "class1" / "again").symlink_to(folder / "class1")
    with pytest.raises(
        ImageReadError, match=r"class1/again: links lead to this directory for the second time"
    ):
        list_images(folder)


def test_links_that_fork_do_not_multiply(folder: Path) -> None:
    """Forty levels of two links each: 2^40 paths."""
    levels = [folder.parent / f"level{number}" for number in range(40)]
    for level, below in zip(levels, [*levels[1:], folder / "class0"], strict=True):
        level.mkdir()
        (level / "a").symlink_to(below)
        (level / "b").symlink_to(below)
    (folder / "class2" / "tree").symlink_to(levels[0])
    with pytest.raises(ImageReadError, match=r"links lead to this directory for the second time"):
        list_images(folder)


def test_links_to_images_elsewhere_are_followed(folder: Path, tmp_path: Path) -> None:
    """Subsets of large collections are often made of links."""
    elsewhere = make_folder(tmp_path / "elsewhere")
    (folder / "class3").symlink_to(elsewhere / "class0")
    (folder / "class0" / "linked.png").symlink_to(elsewhere / "class1" / "image00.png")
    table = scan_image_folder(folder)
    assert "class3/image00.png" in table.paths
    assert "class0/linked.png" in table.paths


def test_a_folder_that_may_not_be_listed_is_named() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        folder = make_folder(Path(directory) / "images")
        (folder / "class0" / "closed").mkdir(mode=0o000)
        if os.fork() == 0:
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                list_images(folder)
            except ImageReadError as error:
                os._exit(9 if "closed: cannot list image folder: Permission denied" in str(error) else 1)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 9


def test_sixteen_bits_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large images are converted strip by strip, with the same result."""
    rng = np.random.default_rng(0)
    files = [saved(Image.fromarray(rng.integers(0, 65536, (37, 23), np.uint16)), "PNG")]
    for mode in ("RGB", "L", "P", "RGBA", "CMYK"):
        picture = Image.fromarray(rng.integers(0, 256, (37, 23, 3), np.uint8)).convert(mode)
        files.append(saved(picture, "TIFF" if mode == "CMYK" else "PNG"))
    files.append(b"P6 23 37 65535\n" + rng.integers(0, 256, 37 * 23 * 6, np.uint8).tobytes())
    whole = [decode_image(data, where=HERE) for data in files]
    monkeypatch.setattr(decoding, "_STRIP_PIXELS", 100)
    for data, expected in zip(files, whole, strict=True):
        assert np.array_equal(decode_image(data, where=HERE), expected)
