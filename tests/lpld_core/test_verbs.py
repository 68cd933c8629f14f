"""The verbs with a teacher: arguments that do not go together fail at once; presets and dry runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lpld_labels as lpld
from lpld_labels.errors import InvalidArgumentError, PoolConflictError, UsageError
from tests.lpld_core.image_folders import NETWORK, SIDE, write_images

NET: dict[str, Any] = {"teacher": NETWORK, "weights": "random", "size": SIDE}
RECOVER: dict[str, Any] = {**NET, "ipc": 1, "iterations": 1}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


@pytest.mark.parametrize(
    ("verb", "arguments", "problem"),
    [
        (
            "build",
            {**NET, "part": lpld.Part(number=1, of=2), "overwrite": True},
            "cannot be combined with --part",
        ),
        ("build", {**NET, "teacher": [NETWORK, NETWORK]}, "once per --teacher"),
        ("build", {**NET, "device": "abacus"}, "'abacus' is not usable here"),
        ("build", {}, "Missing option '--teacher'"),
        ("squeeze", {**NET, "train_teacher": True}, "requires --teacher-weights"),
        ("squeeze", {**NET, "epochs": 2}, "require --train-teacher"),
    ],
)
def test_arguments_that_do_not_go_together(
    images: Path, tmp_path: Path, verb: str, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        getattr(lpld, verb)(images, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "requires --statistics"),
        ({"method": "rded"}, "requires --real"),
        (
            {"method": "sre2l", "overwrite": True, "part": lpld.Part(number=1, of=2)},
            "cannot be combined with --part",
        ),
    ],
)
def test_recover_says_what_is_missing(tmp_path: Path, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        lpld.recover(tmp_path / "out", **{**RECOVER, **arguments})


def test_train_and_verify_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--val-by-order"):
        lpld.train(tmp_path, val_by_order=True)
    with pytest.raises(UsageError, match="--images requires --teacher"):
        lpld.verify(tmp_path, images=tmp_path)


def test_an_unknown_preset(images: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="unknown preset"):
        lpld.build(images, tmp_path / "out", **{**NET, "preset": "huge"})


def test_a_preset_gives_what_is_not_given(images: Path, tmp_path: Path) -> None:
    lpld.build(images, tmp_path / "out", preset="tiny", epochs=2, batch_size=9, **NET)
    summary = lpld.summary(tmp_path / "out")
    assert (summary.manifest.counts.epochs, summary.manifest.header.augmentation.mix) == (2, "none")
    lpld.build(images, tmp_path / "mixed", epochs=1, batch_size=9, **NET)
    assert lpld.summary(tmp_path / "mixed").manifest.header.augmentation.mix == "cutmix"


def test_a_dry_run_writes_nothing(images: Path, tmp_path: Path) -> None:
    result = lpld.build(images, tmp_path / "out", dry_run=True, epochs=3, batch_size=9, **NET)
    assert result.cost is not None
    assert result.cost["views"] == 81
    assert "views: 81" in repr(result)
    assert not (tmp_path / "out").exists()


def test_other_statistics_are_kept(images: Path, tmp_path: Path) -> None:
    first = lpld.squeeze(images, tmp_path / "out.safetensors", **NET)
    assert (first.classes, first.images) == (3, 27)
    with pytest.raises(PoolConflictError, match="another file is already here"):
        lpld.squeeze(images, tmp_path / "out.safetensors", views="crop", seed=1, **NET)


def test_skipped_files_are_logged(images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (images / "class0" / "notes.txt").write_text("x")
    lpld.squeeze(images, tmp_path / "out.safetensors", **NET)
    assert "note: 1 file" in caplog.text
    assert "notes.txt" in caplog.text
