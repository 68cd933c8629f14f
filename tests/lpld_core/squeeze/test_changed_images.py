"""Squeezing the same images again, and images that only look the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from PIL import Image

from lpld_core.images import RealFolder
from lpld_core.settings import SqueezeSettings, Update
from lpld_core.squeeze.squeeze import finished_squeeze, squeeze_folder
from lpld_core.squeeze.statistics import ClassStatistics
from tests.lpld_core.networks import tiny_teacher

Cli = Callable[..., Result]
TINY = ("--teacher", "tests.lpld_core.networks:tiny_net", "--teacher-weights", "random", "--size", "8")
SETTINGS = SqueezeSettings(batch_size=3)
LONG_AGO = 1_000_000_000


def write_real(root: Path) -> Path:
    """Write images that are not compressed, some time ago."""
    for label in range(4):
        for number in range(3):
            path = root / f"class{label}" / f"{number}.bmp"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8, 3), 50 * label + number, np.uint8)).save(path)
            os.utime(path, (LONG_AGO, LONG_AGO))
    return root


def replace_one(root: Path) -> None:
    """Put another image of the same size in the place of one."""
    path = root / "class2" / "1.bmp"
    size = path.stat().st_size
    Image.fromarray(np.full((8, 8, 3), 255, np.uint8)).save(path)
    assert path.stat().st_size == size


@pytest.fixture
def real(tmp_path: Path) -> Path:
    return write_real(tmp_path / "real")


class StoppedError(Exception):
    pass


def stop_after(batches: int) -> Callable[[int, int], None]:
    left = iter(range(batches - 1))

    def progress(done: int, total: int) -> None:
        if done and next(left, None) is None:
            raise StoppedError

    return progress


@pytest.mark.parametrize("update", ["exact", "ema"])
def test_unfinished_work_of_changed_images_is_not_used(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch, update: Update
) -> None:
    monkeypatch.setattr("lpld_core.unfinished.SAVE_SECONDS", 0.0)
    teacher, settings, place = tiny_teacher(), replace(SETTINGS, update=update), tmp_path / "kept"
    place.mkdir()
    with pytest.raises(StoppedError):
        squeeze_folder(teacher, RealFolder.open(real), settings, place=place, progress=stop_after(2))
    assert len(list(place.iterdir())) == 1
    replace_one(real)
    folder = RealFolder.open(real)
    again = squeeze_folder(teacher, folder, settings, place=place)
    assert again.digest() == squeeze_folder(teacher, folder, settings).digest()


def test_a_mended_image_costs_its_own_classes_only(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpld_core.squeeze.squeeze.GROUP_BATCHES", 1)
    teacher = tiny_teacher()
    squeeze_folder(teacher, RealFolder.open(real), SETTINGS, place=tmp_path)
    replace_one(real)
    calls: list[tuple[int, int]] = []
    squeeze_folder(
        teacher, RealFolder.open(real), SETTINGS, place=tmp_path, progress=lambda *call: calls.append(call)
    )
    assert calls == [(12, 12)], "nine of twelve views were there"


def test_statistics_of_changed_images_are_not_the_same(tmp_path: Path, real: Path) -> None:
    teacher, path = tiny_teacher(), tmp_path / "s.safetensors"
    folder = RealFolder.open(real)
    squeeze_folder(teacher, folder, SETTINGS).save(path)
    assert finished_squeeze(path, teacher, folder, SETTINGS) is not None
    assert finished_squeeze(path, teacher, folder, replace(SETTINGS, seed=1)) is None
    replace_one(real)
    assert finished_squeeze(path, teacher, folder, SETTINGS) is None


@pytest.mark.parametrize("dates_kept", [True, False])
def test_a_copy_is_the_same_if_it_has_the_same_dates(tmp_path: Path, real: Path, dates_kept: bool) -> None:
    teacher, path = tiny_teacher(), tmp_path / "s.safetensors"
    squeeze_folder(teacher, RealFolder.open(real), SETTINGS).save(path)
    copying = shutil.copy2 if dates_kept else shutil.copyfile
    copied = RealFolder.open(shutil.copytree(real, tmp_path / "copied", copy_function=copying))
    assert (finished_squeeze(path, teacher, copied, SETTINGS) is not None) == dates_kept


def test_the_command_says_what_to_do(cli: Cli, tmp_path: Path, real: Path) -> None:
    out = tmp_path / "s.safetensors"
    first = cli("squeeze", real, out, *TINY)
    assert first.exit_code == 0, first.output
    again = cli("squeeze", real, out, *TINY)
    assert "is there already, from the same squeeze" in again.stderr
    before = ClassStatistics.load(out).digest()
    replace_one(real)
    refused = cli("squeeze", real, out, *TINY)
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert "something else is already here" in refused.stderr
    assert "--overwrite" in refused.stderr
    assert not out.with_name("s.safetensors.unfinished").exists()
    assert cli("squeeze", real, out, *TINY, "--overwrite").exit_code == 0
    assert ClassStatistics.load(out).digest() != before
