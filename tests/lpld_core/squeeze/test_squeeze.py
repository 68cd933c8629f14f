import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image

from lpld_core import images as real_images
from lpld_core.images import RealFolder, labelled_batches, prepared, random_view
from lpld_core.settings import SqueezeSettings, Update
from lpld_core.squeeze import squeeze
from lpld_core.squeeze.squeeze import class_groups, finished_squeeze, folder_bound, squeeze_folder
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.random_streams import Stream, keyed_generator
from tests.lpld_core.networks import MEAN, STD, collect_statistics, noisy_folder, tiny_teacher

TINY = ("--teacher", "tests.lpld_core.networks:tiny_net", "--teacher-weights", "random", "--size", "8")
SETTINGS = SqueezeSettings(batch_size=3)
CROPS = SqueezeSettings(views="crop", passes=3, batch_size=4, seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RealFolder:
    return RealFolder.open(noisy_folder(tmp_path_factory.mktemp("real"), classes=4, images=5, size=12))


def assert_close(found: ClassStatistics, expected: ClassStatistics) -> None:
    assert found.counts.tolist() == expected.counts.tolist()
    for a, b in zip(found.layers, expected.layers, strict=True):
        torch.testing.assert_close(a.mean, b.mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(a.variance, b.variance, rtol=1e-5, atol=1e-6)


def test_centre_views_are_those_of_evaluation(folder: RealFolder) -> None:
    teacher = tiny_teacher()
    rows = np.arange(len(folder))
    batches = labelled_batches(teacher, folder, rows, batch_size=20)
    expected = collect_statistics(teacher, batches, class_names=folder.class_names)
    found = squeeze_folder(teacher, folder, SqueezeSettings(batch_size=3))
    assert (found.views, found.passes, found.update) == ("centre", 1, "exact")
    assert_close(found, expected)


def test_crop_views_are_keyed_by_pass_and_image(folder: RealFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made again one by one, in folder order, from nothing but (seed, pass, image)."""
    teacher = tiny_teacher()
    views, labels = [], []
    for number in range(3):
        for row in range(len(folder)):
            draws = keyed_generator(5, Stream.SQUEEZE_VIEWS, number, row, 0)
            views.append(random_view(folder.decode(row), (8, 8), draws))
            labels.append(int(folder.labels[row]))
    assert len({view.numpy().tobytes() for view in views}) == 60
    images = prepared(torch.stack(views), MEAN, STD)
    expected = collect_statistics(teacher, [(images, torch.tensor(labels))], class_names=folder.class_names)
    found = squeeze_folder(teacher, folder, CROPS)
    assert (found.views, found.passes, found.counts.tolist()) == ("crop", 3, [15] * 4)
    assert_close(found, expected)
    monkeypatch.setitem(real_images.labelled_batches.__kwdefaults__ or {}, "threads", 3)
    assert squeeze_folder(teacher, folder, CROPS).digest() == found.digest()


def test_random_views_cover_crops_and_flips() -> None:
    """The left half is dark and the right bright, so a flip shows."""
    image = np.zeros((40, 40, 3), np.uint8)
    image[:, 20:] = 200
    views = [random_view(image, (16, 16), keyed_generator(0, n)).float().mean(dim=2) for n in range(600)]
    slopes = torch.stack([view[:, -1].mean() - view[:, 0].mean() for view in views])
    flipped, straight = (slopes < -100).sum().item(), (slopes > 100).sum().item()
    assert 0.8 < flipped / straight < 1.25
    # A crop of less than half the width may lie on one side alone; some do, most do not.
    assert 15 < (slopes == 0).sum() < 90
    assert {tuple(view.shape) for view in views} == {(16, 16)}


def test_progress_and_moving_average_count_all_passes(folder: RealFolder) -> None:
    calls: list[tuple[int, int]] = []
    settings = SqueezeSettings(views="crop", passes=2, batch_size=8, update="ema")
    found = squeeze_folder(tiny_teacher(), folder, settings, progress=lambda *call: calls.append(call))
    assert calls == [(8, 40), (16, 40), (20, 40), (28, 40), (36, 40), (40, 40)]
    assert (found.update, found.momentum, found.passes) == ("ema", 0.1, 2)
    bound = folder_bound(folder, settings)
    assert bound.available == 3
    assert (bound.required_passes - 1) * 3 < bound.required <= bound.required_passes * 3


def test_settings_out_of_range_are_refused() -> None:
    for name, value in (
        ("views", "corner"), ("update", "median"), ("passes", 0), ("passes", 2), ("batch_size", 0),
        ("momentum", 1.0),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=f"{name.replace('_', ' ')} is wrong"):
            SqueezeSettings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("update", ["exact", "ema"])
def test_stopped_anywhere_it_goes_on_to_the_same_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: Update, reused: list[str]
) -> None:
    monkeypatch.setattr("lpld_core.unfinished.SAVE_SECONDS", 0.0)
    folder = RealFolder.open(noisy_folder(tmp_path / "real", classes=4, images=5))
    teacher = tiny_teacher()
    settings = SqueezeSettings(batch_size=6, views="crop", passes=3, update=update)
    whole = squeeze_folder(teacher, folder, settings)
    # 4 batches in each of 3 passes.
    for moment in (1, 3, 4, 5, 8, 11):
        kept = tmp_path / f"kept{moment}"
        kept.mkdir()
        calls: list[int] = []

        def stop(done: int, total: int, calls: list[int] = calls, moment: int = moment) -> None:
            calls.append(done)
            if len(calls) == moment:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            squeeze_folder(teacher, folder, settings, place=kept, progress=stop)
        again = squeeze_folder(teacher, folder, settings, place=kept, progress=stop)
        # What was kept is told first.
        assert reused == [f"{kept}: resumes, {calls[moment]} of 60 views reused"]
        reused.clear()
        assert len(set(calls)) == 12
        assert again.digest() == whole.digest()
        assert torch.equal(again.counts, whole.counts)
    other = replace(settings, seed=1)
    found, expected = (
        squeeze_folder(teacher, folder, other, place=kept),
        squeeze_folder(teacher, folder, other),
    )
    assert found.digest() == expected.digest(), "the work of other settings is not used"


def test_groups_follow_from_images_and_batch_size(
    folder: RealFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(squeeze, "GROUP_BATCHES", 2)
    found = class_groups(tiny_teacher(), folder, SqueezeSettings(batch_size=4))
    assert [(group.first, group.end, group.views) for group in found] == [(0, 2, 10), (2, 4, 10)]
    in_all = sum(group.views for group in class_groups(tiny_teacher(), folder, CROPS))
    assert in_all == CROPS.passes * len(folder)


def test_a_moving_average_is_one_task(folder: RealFolder) -> None:
    settings = SqueezeSettings(update="ema", batch_size=1)
    assert len(class_groups(tiny_teacher(), folder, settings)) == 1


def replace_one(root: Path) -> None:
    path = root / "class2" / "001.bmp"
    size = path.stat().st_size
    Image.fromarray(np.full((8, 8, 3), 255, np.uint8)).save(path)
    assert path.stat().st_size == size


@pytest.fixture
def real(tmp_path: Path) -> Path:
    root = noisy_folder(tmp_path / "real", classes=4, images=3, suffix="bmp")
    for path in root.rglob("*.bmp"):
        os.utime(path, (1_000_000_000, 1_000_000_000))  # long ago
    return root


def stop_after(batches: int) -> Callable[[int, int], None]:
    left = iter(range(batches - 1))

    def progress(done: int, total: int) -> None:
        if done and next(left, None) is None:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("update", ["exact", "ema"])
def test_unfinished_work_of_changed_images_is_not_used(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch, update: Update
) -> None:
    monkeypatch.setattr("lpld_core.unfinished.SAVE_SECONDS", 0.0)
    teacher, settings, place = tiny_teacher(), replace(SETTINGS, update=update), tmp_path / "kept"
    place.mkdir()
    with pytest.raises(KeyboardInterrupt):
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
    for copying, same in ((shutil.copy2, True), (shutil.copyfile, False)):  # copyfile does not keep dates
        copied = shutil.copytree(real, tmp_path / copying.__name__, copy_function=copying)
        assert (finished_squeeze(path, teacher, RealFolder.open(copied), SETTINGS) is not None) == same
    replace_one(real)
    assert finished_squeeze(path, teacher, folder, SETTINGS) is None


def test_the_command_says_what_to_do(cli: Callable[..., Result], tmp_path: Path, real: Path) -> None:
    out = tmp_path / "s.safetensors"
    first = cli("squeeze", real, out, *TINY)
    assert first.exit_code == 0, first.output
    again = cli("squeeze", real, out, *TINY)
    assert "already exists, from the same squeeze" in again.stderr
    before = ClassStatistics.load(out).digest()
    replace_one(real)
    refused = cli("squeeze", real, out, *TINY)
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert "a different file is already here" in refused.stderr
    assert "--overwrite" in refused.stderr
    assert not out.with_name("s.safetensors.unfinished").exists()
    assert cli("squeeze", real, out, *TINY, "--overwrite").exit_code == 0
    assert ClassStatistics.load(out).digest() != before
