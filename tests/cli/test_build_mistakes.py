"""Builds that cannot work say so in a line, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import Result
from PIL import Image

from lpld_core.networks.weights import save_weights
from lpld_core.teachers.teacher import load_teacher
from lpld_labels.pool.reader import PoolReader
from tests.cli.build_runs import SETTINGS, TEACHER, Cli, one_line_error
from tests.lpld_core.image_folders import NETWORK, SIDE, write_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "folder")


def build(cli: Cli, folder: Path, *more: object) -> Result:
    result = cli("build", folder, folder.parent / "pool", *TEACHER, *SETTINGS, *more)
    assert not (folder.parent / "pool/pool.json").exists()
    return result


def weights(path: Path, classes: int = 3) -> Path:
    from lpld_core.networks.models import SmallResNet

    torch.save(SmallResNet(classes=classes, depth=10, width=8, stem_stride=2).state_dict(), path)
    return path


def with_weights(cli: Cli, folder: Path, file: Path) -> Result:
    return cli("build", folder, folder.parent / "pool", "--teacher", NETWORK, "--teacher-weights", file)


def test_an_image_folder_that_is_missing_or_empty(cli: Cli, folder: Path) -> None:
    one_line_error(build(cli, folder.parent / "nothing"), "nothing", "does not exist")
    (folder / "class9").mkdir()
    one_line_error(build(cli, folder), "class9", "holds no images")


def test_a_class_folder_that_is_missing(cli: Cli, folder: Path) -> None:
    file = weights(folder.parent / "w.pth", classes=4)
    one_line_error(with_weights(cli, folder, file), "3 classes", "got 4")


def test_fewer_classes_are_allowed_when_asked_for(cli: Cli, folder: Path) -> None:
    file = weights(folder.parent / "w.pth", classes=4)
    out = folder.parent / "pool"
    options = ("--teacher", NETWORK, "--teacher-weights", file, "--size", SIDE, *SETTINGS, "--epochs", 1)
    result = cli("build", folder, out, *options, "--fewer-classes")
    assert result.exit_code == 0, result.output
    with PoolReader(out) as pool:
        assert pool.classes == 4


def test_an_image_that_cannot_be_read(cli: Cli, folder: Path) -> None:
    broken = folder / "class1/003.png"
    broken.write_bytes(broken.read_bytes()[:60])
    one_line_error(build(cli, folder), "class1/003.png")
    broken.write_text("no image")
    one_line_error(build(cli, folder), "class1/003.png", "not an image")


def test_images_of_different_sizes_are_recorded(cli: Cli, folder: Path) -> None:
    Image.new("L", (90, 41)).save(folder / "class0/large.png")
    result = cli("build", folder, folder.parent / "pool", *TEACHER, *SETTINGS, "--epochs", 1)
    assert result.exit_code == 0, result.output
    with PoolReader(folder.parent / "pool") as pool:
        row = list(pool.images.paths).index("class0/large.png")
        assert (pool.images.widths[row], pool.images.heights[row]) == (90, 41)


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_a_teacher_file_that_is_not_weights(cli: Cli, folder: Path, name: str) -> None:
    (folder.parent / name).write_text("hello")
    one_line_error(with_weights(cli, folder, folder.parent / name), name, "not a weights file")


def test_images_changed_since_the_pool_was_built(cli: Cli, folder: Path) -> None:
    out = folder.parent / "pool"
    cli("build", folder, out, *TEACHER, *SETTINGS, "--epochs", 2, "--ratio", 5)
    Image.new("RGB", (SIDE, SIDE)).save(folder / "class1/000.png")
    grow = cli("build", folder, out, *TEACHER, *SETTINGS, "--epochs", 2)
    one_line_error(grow, "class1/000.png", "has changed")
    (folder / "class1/000.png").unlink()
    fewer = cli("build", folder, out, *TEACHER, *SETTINGS, "--epochs", 2)
    one_line_error(fewer, "class1/000.png", "class1/001.png")
    one_line_error(
        cli("verify", out, "--images", folder, *TEACHER, "--batches", 9), "class1/000.png", "missing"
    )


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--part", "4/3"), "I/N"),
        (("--mean", "0.5"), "three numbers"),
        (("--ratio", "0.5"), "0.5"),
        (("--teacher-weights", "random"), "once per --teacher"),
        (("--device", "nonsense"), "nonsense"),
        (("--preset", "cifar"), "cifar"),
    ],
)
def test_wrong_options(cli: Cli, folder: Path, options: tuple[str, str], word: str) -> None:
    one_line_error(build(cli, folder, *options), word, code=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--ratio", "1000"), ("ratio is too large",)),
        (("--codec", "f13"), ("unknown codec", "f16")),
        (("--codec", "topk:50"), ("50", "3")),
        (("--crop-scale", "0.9", "0.1"), ("crop_scale",)),
        (("--cutout", "2"), ("cutout_fraction",)),
    ],
)
def test_settings_that_cannot_work_leave_nothing_behind(
    cli: Cli, folder: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    before = sorted(folder.parent.rglob("*"))
    one_line_error(build(cli, folder, *options), *words)
    assert sorted(folder.parent.rglob("*")) == before


def test_a_teacher_without_numbers_is_told_before_anything_is_written(cli: Cli, folder: Path) -> None:
    weights = folder.parent / "nan.safetensors"
    teacher = load_teacher(NETWORK, weights="random", classes=3)
    tensors = {name: value * torch.nan for name, value in teacher.model.state_dict().items()}
    save_weights(weights, tensors, {})
    words = ("--teacher", NETWORK, "--teacher-weights", weights, "--size", SIDE, *SETTINGS)
    one_line_error(cli("build", folder, folder.parent / "pool", *words), "not finite")
    assert not (folder.parent / "pool").exists()


def test_a_pool_of_incomplete_batches_is_warned_of(cli: Cli, folder: Path) -> None:
    result = cli("build", folder, folder.parent / "pool", *TEACHER, "--preset", "tiny", "--epochs", 2)
    assert result.exit_code == 0, result.output
    assert "warning: 27 images do not fill a batch of 64" in result.stderr
    assert "--batch-size 27" in result.stderr


def test_fewer_epochs_than_the_pool_has(cli: Cli, folder: Path) -> None:
    out = folder.parent / "pool"
    assert cli("build", folder, out, *TEACHER, *SETTINGS, "--epochs", 3).exit_code == 0
    one_line_error(cli("build", folder, out, *TEACHER, *SETTINGS, "--epochs", 2), "build with 3 epochs")


def test_folders_that_are_no_classes(cli: Cli, folder: Path) -> None:
    (folder / "__MACOSX").mkdir()
    (folder / ".cache").mkdir()
    (folder / "class0" / "notes.txt").write_text("not an image")
    out = folder.parent / "pool"
    result = cli("build", folder, out, *TEACHER, *SETTINGS, "--epochs", 1)
    assert result.exit_code == 0, result.output
    assert "1 file in" in result.stderr
    assert "class0/notes.txt" in result.stderr
    (folder / "later").mkdir()
    one_line_error(cli("build", folder, out, *TEACHER, *SETTINGS, "--epochs", 1), "later", "holds no images")


def test_a_teacher_is_needed(cli: Cli, folder: Path) -> None:
    one_line_error(cli("build", folder, folder.parent / "pool"), "--teacher", code=2)
