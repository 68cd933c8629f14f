from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader

from benchmarks.common.photos import photo_folder
from lpld_labels.errors import ImageMismatchError, ImageReadError
from lpld_labels.render.decode import VARIABLE, decode_image
from lpld_labels.render.images import (
    FolderImages,
    check_images,
    class_names,
    list_images,
    passed_over,
    read_file,
    scan_image_folder,
)
from tests.lpld_labels.render.pictures import make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "images")


def test_scan_describes_every_image(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    table = scan_image_folder(folder, progress=lambda done, total: seen.append((done, total)))
    assert class_names(folder) == ["class0", "class1", "class2"]
    assert table.paths[:5] == [*(f"class0/image{i:02d}.png" for i in range(4)), "class1/image00.png"]
    assert table.classes.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert list(zip(table.heights, table.widths, strict=True))[:4] == [(40, 56), (64, 64), (33, 71), (40, 56)]
    data = (folder / table.paths[7]).read_bytes()
    assert table.digests[7] == hashlib.sha256(data).digest()[:16]
    assert seen == [(i, 12) for i in range(1, 13)]


def test_order_is_that_of_torchvision(folder: Path) -> None:
    image = Image.new("RGB", (4, 4))
    deep = folder / "class1" / "b" / "c"
    deep.mkdir(parents=True)
    for path in (deep / "z.PNG", folder / "class1" / "b" / "a.jpeg", folder / "class1" / "B.bmp"):
        image.save(path)
    (folder / "class0" / "notes.txt").write_text("not an image")
    (folder / "readme.txt").write_text("not a class")
    paths, classes = list_images(folder)
    theirs = ImageFolder(str(folder))
    assert [(str(folder / path), label) for path, label in zip(paths, classes, strict=True)] == theirs.samples
    assert class_names(folder) == theirs.classes


def test_real_photos(tmp_path: Path) -> None:
    root = photo_folder(tmp_path, side=224, count=24)
    table = scan_image_folder(root)
    assert len(table) == 24
    assert set(table.heights.tolist()) == set(table.widths.tolist()) == {224}
    check_images(FolderImages(root, table))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "LA", "1", "CMYK"])
def test_images_become_rgb_as_with_torchvision(tmp_path: Path, mode: str) -> None:
    levels = np.arange(48).reshape(6, 8) * 5
    image = Image.fromarray(np.stack([levels, levels // 2, 255 - levels], 2).astype(np.uint8)).convert(mode)
    path = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    image.save(path)
    ours = decode_image(read_file(path), where=path)
    assert ours.shape == (6, 8, 3)
    assert np.array_equal(ours, np.asarray(default_loader(str(path))))


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ImageReadError, match="nowhere: image folder does not exist"):
        scan_image_folder(tmp_path / "nowhere")


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ImageReadError, match=r"cannot list image folder: Not a directory"):
        scan_image_folder(tmp_path / "file")


def test_folder_without_classes(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "image.png")
    with pytest.raises(ImageReadError, match=r"no class folders; put the images of each class"):
        scan_image_folder(tmp_path)


def test_empty_class(folder: Path) -> None:
    (folder / "class3").mkdir()
    (folder / "class3" / "notes.txt").touch()
    with pytest.raises(
        ImageReadError, match=r"class3: class folder holds no images \(expected files ending in .jpg"
    ):
        scan_image_folder(folder)


def test_file_that_is_no_image(folder: Path) -> None:
    (folder / "class1" / "fake.jpg").write_text("hello")
    with pytest.raises(ImageReadError, match=r"class1/fake.jpg: not an image .JPEG.*; replace or remove"):
        scan_image_folder(folder)


@pytest.mark.parametrize("extension", ["png", "jpg"])
def test_truncated_image(folder: Path, extension: str) -> None:
    whole = folder / "class2" / f"cut.{extension}"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(whole)
    whole.write_bytes(whole.read_bytes()[:-2000])
    with pytest.raises(ImageReadError, match=rf"class2/cut.{extension}: broken image: .*truncated"):
        scan_image_folder(folder)


def test_image_that_may_not_be_read(folder: Path) -> None:
    (folder / "class0" / "loop.png").symlink_to("loop.png")
    with pytest.raises(ImageReadError, match=r"loop.png: cannot read image"):
        scan_image_folder(folder)


def test_file_name_that_is_not_text(folder: Path) -> None:
    strange = os.fsencode(folder / "class0") + b"/caf\xe9.png"
    try:
        Path(os.fsdecode(strange)).touch()
    except OSError:
        pytest.skip("this file system keeps only UTF-8 names")
    with pytest.raises(ImageReadError, match=r"class0: file name is not UTF-8: 'class0/caf\\udce9.png'"):
        list_images(folder)


def test_check_names_the_changed_image(folder: Path) -> None:
    table = scan_image_folder(folder)
    check_images(FolderImages(folder, table))
    victim = folder / table.paths[6]
    Image.new("RGB", (71, 33)).save(victim)
    with pytest.raises(
        ImageMismatchError, match=r"class1/image02.png: image 6 has changed .*expected digest"
    ):
        check_images(FolderImages(folder, table))


def test_check_names_the_missing_image(folder: Path) -> None:
    table = scan_image_folder(folder)
    (folder / table.paths[3]).unlink()
    with pytest.raises(ImageMismatchError, match=r"class0/image03.png: image 3 .* is missing"):
        check_images(FolderImages(folder, table))


def test_what_a_system_hides_is_no_class_and_no_image(folder: Path) -> None:
    before = list_images(folder)
    for name in (".ipynb_checkpoints", "__MACOSX"):
        (folder / name).mkdir()
        Image.new("RGB", (4, 4)).save(folder / name / "a.png")
    (folder / "class0" / ".thumbnails").mkdir()
    Image.new("RGB", (4, 4)).save(folder / "class0" / ".thumbnails" / "a.png")
    (folder / "class0" / "._image00.png").write_bytes(b"resource fork")
    assert class_names(folder) == ["class0", "class1", "class2"]
    assert list_images(folder) == before
    assert passed_over(folder) == []


def test_other_files_in_class_folders_can_be_named(folder: Path) -> None:
    (folder / "readme.txt").write_text("beside the classes")
    (folder / "class2" / "notes.txt").write_text("not an image")
    Image.new("RGB", (4, 4)).save(folder / "class0" / "moving.gif")
    assert passed_over(folder) == ["class0/moving.gif", "class2/notes.txt"]


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


def test_large_files_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (folder / "class0" / "sparse.png").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ImageReadError, match=rf"sparse.png: cannot read image: it has .* bytes.*{VARIABLE}"):
        scan_image_folder(folder)


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
