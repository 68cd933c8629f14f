"""The verbs with a teacher: usage errors, presets and dry runs.

tests/cli/test_mistakes.py has all arguments that do not go together: commands call these verbs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lpld_labels as lpld
from lpld_labels.errors import InvalidArgumentError, UsageError
from tests.lpld_core.image_folders import NETWORK, SIDE, write_images

NET: dict[str, Any] = {"teacher": NETWORK, "weights": "random", "size": SIDE}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


@pytest.mark.parametrize(
    ("verb", "arguments", "problem"),
    [
        ("build", {**NET, "device": "abacus"}, "cannot use device 'abacus'"),
        ("build", {}, "Missing option '--teacher'"),
        ("squeeze", {**NET, "train_teacher": True}, "requires --teacher-weights"),
    ],
)
def test_arguments_that_do_not_go_together(
    images: Path, tmp_path: Path, verb: str, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        getattr(lpld, verb)(images, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


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


def test_skipped_files_are_logged(images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (images / "class0" / "notes.txt").write_text("x")
    lpld.squeeze(images, tmp_path / "out.safetensors", **NET)
    assert "note: 1 file" in caplog.text
    assert "notes.txt" in caplog.text
