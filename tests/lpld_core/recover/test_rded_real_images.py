"""rded goes on with the real images it began with, wherever they lie by now."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lpld_core.images import RealFolder
from lpld_core.recover.run import RunSummary, recover_images
from lpld_core.recover.settings import RdedSettings
from lpld_core.settings import Part
from lpld_labels.errors import PoolConflictError
from tests.lpld_core.networks import tiny_teacher

SETTINGS = RdedSettings(ipc=1, size=(8, 8), crops=1)
FIELD = "real_images_digest"


def write_real(root: Path, *, seed: int) -> Path:
    """Write images that are not compressed: whatever they show, all are as long."""
    random = np.random.default_rng(seed)
    for label in range(4):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(4):
            pixels = random.integers(0, 256, (10, 10, 3), np.uint8)
            Image.fromarray(pixels).save(root / f"class{label}" / f"{number}.bmp")
    return root


def stitch(out: Path, real: Path, part: Part | None = None, *, overwrite: bool = False) -> RunSummary:
    folder = RealFolder.open(real)
    return recover_images(tiny_teacher(), out, settings=SETTINGS, real=folder, part=part, overwrite=overwrite)


def images_of(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.rglob("*.jpg"))}


@pytest.fixture
def real(tmp_path: Path) -> Path:
    return write_real(tmp_path / "real", seed=0)


@pytest.fixture
def other(tmp_path: Path, real: Path) -> Path:
    """Other images under the same names and of the same sizes."""
    folder = write_real(tmp_path / "other", seed=1)
    assert RealFolder.open(folder).listing_digest() == RealFolder.open(real).listing_digest()
    return folder


@pytest.mark.parametrize("part", [Part(number=1, of=3), None])
def test_other_real_images_are_not_mixed_in(
    tmp_path: Path, real: Path, other: Path, part: Part | None
) -> None:
    """Neither into a part of the images, nor are they said to be what all were made of."""
    out = tmp_path / "out"
    stitch(out, real, part)
    before = images_of(out)
    with pytest.raises(PoolConflictError, match=f"'{FIELD}' differs") as caught:
        stitch(out, other)
    assert "--overwrite" in caught.value.hint
    assert images_of(out) == before
    stitch(out, other, overwrite=True)
    stitch(tmp_path / "alone", other)
    assert images_of(out) == images_of(tmp_path / "alone")


def test_an_image_more_is_another_folder(tmp_path: Path, real: Path) -> None:
    stitch(tmp_path / "out", real, Part(number=1, of=3))
    shutil.copy(real / "class0" / "0.bmp", real / "class3" / "9.bmp")
    with pytest.raises(PoolConflictError, match=f"'{FIELD}' differs"):
        stitch(tmp_path / "out", real)


def test_copies_of_the_real_images_are_the_same(tmp_path: Path, real: Path) -> None:
    """Machines that make parts may have one each."""
    stitch(tmp_path / "whole", real)
    copied = Path(shutil.copytree(real, tmp_path / "copied", copy_function=shutil.copyfile))
    stitch(tmp_path / "out", real, Part(number=1, of=2))
    assert stitch(tmp_path / "out", copied, Part(number=2, of=2)).complete
    assert images_of(tmp_path / "out") == images_of(tmp_path / "whole")
