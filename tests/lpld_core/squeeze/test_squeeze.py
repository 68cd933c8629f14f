"""Squeezing a folder: centre or random views, in passes, whatever the order and the threads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lpld_core import images as real_images
from lpld_core.images import RealFolder, labelled_batches, prepared, random_view
from lpld_core.settings import SqueezeSettings, Update
from lpld_core.squeeze import squeeze
from lpld_core.squeeze.squeeze import class_groups, folder_bound, squeeze_folder
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.local import LocalExecutor
from lpld_labels.format.random_streams import Stream, keyed_generator
from tests.lpld_core.networks import MEAN, STD, collect_statistics, noisy_folder, tiny_teacher

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


def test_crop_views_are_keyed_by_pass_and_image(folder: RealFolder) -> None:
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


def test_threads_change_nothing(folder: RealFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = tiny_teacher()
    digests = set()
    for threads in (1, 3):
        monkeypatch.setitem(real_images.labelled_batches.__kwdefaults__ or {}, "threads", threads)
        digests.add(squeeze_folder(teacher, folder, CROPS).digest())
    assert len(digests) == 1
    assert squeeze_folder(teacher, folder, SqueezeSettings(views="crop", seed=5)).digest() not in digests


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


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"views": "corner"}, "views"),
        ({"update": "median"}, "update"),
        ({"passes": 0}, "passes"),
        ({"passes": 2}, "passes"),
        ({"batch_size": 0}, "batch_size"),
        ({"momentum": 1.0}, "momentum"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{field.replace('_', ' ')} is wrong"):
        SqueezeSettings(**changes)  # type: ignore[arg-type]


class StoppedError(Exception):
    pass


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
    for moment in range(1, 12):
        kept = tmp_path / f"kept{moment}"
        kept.mkdir()
        calls: list[int] = []

        def stop(done: int, total: int, calls: list[int] = calls, moment: int = moment) -> None:
            calls.append(done)
            if len(calls) == moment:
                raise StoppedError

        with pytest.raises(StoppedError):
            squeeze_folder(teacher, folder, settings, place=kept, progress=stop)
        again = squeeze_folder(teacher, folder, settings, place=kept, progress=stop)
        # What was kept is told first.
        assert reused == [f"{kept}: resumes, {calls[moment]} of 60 views reused"]
        reused.clear()
        assert len(set(calls)) == 12
        assert again.digest() == whole.digest()
        assert torch.equal(again.counts, whole.counts)
    other = replace(settings, seed=1)
    assert (
        squeeze_folder(teacher, folder, other, place=kept).digest()
        == squeeze_folder(teacher, folder, other).digest()
    ), "the work of other settings is not used"


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
    alone = squeeze_folder(tiny_teacher(), folder, settings)
    assert (
        squeeze_folder(tiny_teacher(), folder, settings, executor=LocalExecutor(2)).digest() == alone.digest()
    )
