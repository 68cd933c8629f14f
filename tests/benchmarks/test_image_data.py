"""Images for the benchmarks that train students: how they are found, and how one gets them."""

import zipfile
from pathlib import Path

import pytest

from benchmarks.common import image_data
from benchmarks.common.image_data import arrange_tiny_imagenet, unpack_data
from lpld_labels.errors import InvalidArgumentError


def test_tiny_imagenets_archive_is_brought_into_shape(tmp_path: Path) -> None:
    archive = tmp_path / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(archive, "w") as file:
        root = "tiny-imagenet-200"
        file.writestr(f"{root}/wnids.txt", "n1\nn2\n")
        for label in ("n1", "n2"):
            file.writestr(f"{root}/train/{label}/images/{label}_0.JPEG", f"train {label}")
        file.writestr(f"{root}/val/images/val_0.JPEG", "val n2")
        file.writestr(f"{root}/val/images/val_1.JPEG", "val n1")
        file.writestr(f"{root}/val/val_annotations.txt", "val_0.JPEG\tn2\t0\t0\nval_1.JPEG\tn1\t0\t0\n")
        file.writestr(f"{root}/test/images/test_0.JPEG", "no class")
    assert arrange_tiny_imagenet(archive, tmp_path / "all", classes=2) == 4
    assert (tmp_path / "all/val/n1/val_1.JPEG").read_text() == "val n1"
    assert arrange_tiny_imagenet(archive, tmp_path / "one", classes=1) == 2
    assert sorted(path.name for path in (tmp_path / "one").rglob("*.JPEG")) == ["n1_0.JPEG", "val_1.JPEG"]


def test_missing_images_say_how_to_get_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_data, "SHARED_DATA", tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"--data DIRECTORY with train/CLASS"):
        unpack_data("tiny20", tmp_path / "out")
    assert not (tmp_path / "out").exists()
