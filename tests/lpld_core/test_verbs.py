"""The verbs with a teacher: presets and notes.

tests/cli/test_mistakes.py has all arguments that do not go together: commands call these verbs.
"""

from pathlib import Path
from typing import Any

import pytest

import lpld_labels as lpld
from tests.lpld_core.image_folders import NETWORK, SIDE, write_images

NET: dict[str, Any] = {"teacher": NETWORK, "weights": "random", "size": SIDE}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


def test_a_preset_gives_what_is_not_given(images: Path, tmp_path: Path) -> None:
    lpld.build(images, tmp_path / "out", preset="tiny", epochs=2, batch_size=9, **NET)
    summary = lpld.summary(tmp_path / "out")
    assert (summary.manifest.counts.epochs, summary.manifest.header.augmentation.mix) == (2, "none")
    lpld.build(images, tmp_path / "mixed", epochs=1, batch_size=9, **NET)
    assert lpld.summary(tmp_path / "mixed").manifest.header.augmentation.mix == "cutmix"


def test_skipped_files_are_logged(images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (images / "class0" / "notes.txt").write_text("x")
    lpld.squeeze(images, tmp_path / "out.safetensors", **NET)
    assert "note: 1 file" in caplog.text
    assert "notes.txt" in caplog.text
