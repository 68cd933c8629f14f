import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from lpld_labels.errors import ImageMismatchError, ImageReadError
from lpld_labels.render.decode import VARIABLE
from lpld_labels.render.images import (
    FolderImages,
    check_images,
    class_names,
    list_images,
    map_ahead,
    passed_over,
    scan_image_folder,
)
from tests.lpld_labels.render.pictures import make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "images")


def save(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)


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


def test_order_is_that_of_torchvision_and_other_files_are_skipped(folder: Path) -> None:
    for name in ("b/c/z.PNG", "b/a.jpeg", "B.bmp"):
        save(folder / "class1" / name)
    (folder / "class0" / "notes.txt").write_text("not an image")
    (folder / "readme.txt").write_text("not a class")
    paths, classes = list_images(folder)
    theirs = ImageFolder(str(folder))
    assert [(str(folder / path), label) for path, label in zip(paths, classes, strict=True)] == theirs.samples
    assert class_names(folder) == theirs.classes
    save(folder / "class0" / "moving.gif")
    assert passed_over(folder) == ["class0/moving.gif", "class0/notes.txt"]


def test_hidden_files_and_folders_are_no_classes_and_no_images(folder: Path) -> None:
    before = list_images(folder)
    for name in (".ipynb_checkpoints", "__MACOSX", "class0/.thumbnails"):
        save(folder / name / "a.png")
    (folder / "class0" / "._image00.png").write_bytes(b"resource fork")
    assert class_names(folder) == ["class0", "class1", "class2"]
    assert list_images(folder) == before
    assert passed_over(folder) == []


def _cut(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-2000])


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("fake.jpg", lambda path: path.write_text("hello"), "not an image .JPEG.*; replace or remove"),
        ("cut.png", _cut, "broken image: .*truncated"),
        ("cut.jpg", _cut, "broken image: .*truncated"),
        ("loop.png", lambda path: path.symlink_to("loop.png"), "cannot read image"),
        ("sparse.png", _sparse, rf"cannot read image: it has .* bytes.*{VARIABLE}"),
        ("pipe.png", os.mkfifo, "cannot read image: it is a pipe, a socket or"),
        (
            "device.png",
            lambda path: path.symlink_to("/dev/zero"),
            "cannot read image: it is a pipe, a socket or",
        ),
    ],
)
def test_a_bad_file_is_named(folder: Path, name: str, make: Callable[[Path], object], words: str) -> None:
    make(folder / "class1" / name)
    with pytest.raises(ImageReadError, match=rf"class1/{name}: {words}"):
        scan_image_folder(folder)


def test_bad_folders_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    save(tmp_path / "flat" / "image.png")
    (folder / "class3").mkdir()
    (folder / "class3" / "notes.txt").touch()
    for place, words in (
        (tmp_path / "nowhere", "nowhere: image folder does not exist"),
        (tmp_path / "file", "cannot list image folder: Not a directory"),
        (tmp_path / "flat", "no class folders; put the images of each class"),
        (folder, r"class3: class folder contains no images \(expected files ending in .jpg"),
    ):
        with pytest.raises(ImageReadError, match=words):
            scan_image_folder(place)


def test_a_file_name_that_is_not_text(folder: Path) -> None:
    strange = os.fsencode(folder / "class0") + b"/caf\xe9.png"
    try:
        Path(os.fsdecode(strange)).touch()
    except OSError:
        pytest.skip("this file system keeps only UTF-8 names")
    with pytest.raises(ImageReadError, match=r"class0: file name is not UTF-8: 'class0/caf\\udce9.png'"):
        list_images(folder)


@pytest.mark.parametrize("kind", ["missing", "pipe", "device", "directory", "changed"])
def test_check_names_the_image_that_is_missing_or_changed(folder: Path, kind: str) -> None:
    table = scan_image_folder(folder)
    check_images(FolderImages(folder, table))
    victim = folder / table.paths[6]
    victim.unlink()
    if kind == "pipe":
        os.mkfifo(victim)
    elif kind == "device":
        victim.symlink_to("/dev/zero")
    elif kind == "directory":
        victim.mkdir()
    elif kind == "changed":
        Image.new("RGB", (71, 33)).save(victim)
    words = "has changed .*expected digest" if kind == "changed" else ".* is missing"
    with pytest.raises(ImageMismatchError, match=rf"class1/image02.png: image 6 {words}"):
        check_images(FolderImages(folder, table))


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


def test_loops_of_links_and_links_that_fork_are_refused(folder: Path) -> None:
    (folder / "class1" / "again").symlink_to(folder / "class1")
    message = "symlinks lead to this directory twice"
    with pytest.raises(ImageReadError, match=f"class1/again: {message}"):
        list_images(folder)
    (folder / "class1" / "again").unlink()
    # Forty levels of two links each: 2^40 paths.
    levels = [folder.parent / f"level{number}" for number in range(40)]
    for level, below in zip(levels, [*levels[1:], folder / "class0"], strict=True):
        level.mkdir()
        (level / "a").symlink_to(below)
        (level / "b").symlink_to(below)
    (folder / "class2" / "tree").symlink_to(levels[0])
    with pytest.raises(ImageReadError, match=message):
        list_images(folder)


def test_links_to_images_elsewhere_are_followed(folder: Path, tmp_path: Path) -> None:
    """Subsets of large collections are often made of links."""
    elsewhere = make_folder(tmp_path / "elsewhere")
    (folder / "class3").symlink_to(elsewhere / "class0")
    (folder / "class0" / "linked.png").symlink_to(elsewhere / "class1" / "image00.png")
    assert {"class3/image00.png", "class0/linked.png"} < set(scan_image_folder(folder).paths)


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


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_order(workers: int) -> None:
    def slow_first(item: int) -> int:
        time.sleep(0.02 if item == 0 else 0)
        return item * item

    assert list(map_ahead(slow_first, range(9), workers=workers, ahead=4)) == [i * i for i in range(9)]


def test_work_runs_ahead_but_not_far() -> None:
    begun: list[int] = []

    def note(item: int) -> int:
        begun.append(item)
        return item

    with closing(map_ahead(note, range(100), ahead=2)) as results:
        for expected in range(5):
            assert next(results) == expected
            assert len(begun) <= expected + 3
        # However busy the machine is, two more are begun in the end, and with nobody asking no third.
        while len(begun) < 7:
            time.sleep(0.001)
        time.sleep(0.05)
        assert len(begun) == 7


def test_errors_made_ahead_are_raised_in_their_turn() -> None:
    def fail(item: int) -> int:
        if item == 2:
            raise KeyError(item)
        return item

    results = map_ahead(fail, range(5), ahead=3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(KeyError):
        next(results)
