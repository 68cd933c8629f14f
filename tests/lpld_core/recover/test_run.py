import dataclasses
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lpld_core.images import RealFolder, evenly
from lpld_core.recover import folder as folder_module
from lpld_core.recover.folder import (
    CONTACT_SHEET_FILE,
    RECORD_FILE,
    RecoveredFolder,
    contact_sheet,
    to_pixels,
)
from lpld_core.recover.run import RunSummary, recover_images
from lpld_core.recover.settings import RecoverSettings
from lpld_core.settings import Part
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_core.unfinished import workplace
from lpld_labels.errors import ComputationError, InvalidArgumentError, PoolConflictError
from lpld_labels.render.images import scan_image_folder
from tests.lpld_core.networks import MEAN, STD, collect_statistics, noisy_folder, tiny_teacher

NAMES = ("ant", "bee", "cat", "dog")
SETTINGS = RecoverSettings(
    method="lpld", ipc=3, iterations=3, learning_rate=0.1, alpha=0.05, roll=2, size=(8, 8), class_group=1
)


@pytest.fixture(scope="module")
def teacher() -> LoadedTeacher:
    return tiny_teacher()


@pytest.fixture
def statistics(teacher: LoadedTeacher) -> ClassStatistics:
    images = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return collect_statistics(teacher, [(images, torch.arange(16) % 4)], class_names=NAMES)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.*"))}


@pytest.fixture
def recover(teacher: LoadedTeacher, statistics: ClassStatistics) -> Callable[..., RunSummary]:
    def recovered(
        out: Path,
        settings: RecoverSettings = SETTINGS,
        *,
        statistics: ClassStatistics = statistics,
        **more: Any,
    ) -> RunSummary:
        return recover_images(teacher, out, settings=settings, statistics=statistics, **more)

    return recovered


Recover = Callable[..., RunSummary]


def stop_at(moment: int) -> Callable[[int, int], None]:
    def stop(done: int, total: int) -> None:
        if done >= moment:
            raise KeyboardInterrupt

    return stop


def noting(calls: list[int]) -> Callable[[int, int], None]:
    def note(done: int, total: int) -> None:
        calls.append(done)

    return note


def test_images_are_saved_as_an_image_folder(
    recover: Recover, teacher: LoadedTeacher, statistics: ClassStatistics, tmp_path: Path
) -> None:
    calls: list[tuple[int, int]] = []
    summary = recover(tmp_path / "out", progress=lambda done, total: calls.append((done, total)))
    assert (summary.made_groups, summary.kept_groups, summary.images, summary.complete) == (4, 0, 12, True)
    assert calls == [(done, 12) for done in range(1, 13)]
    table = scan_image_folder(tmp_path / "out")
    assert table.paths[:2] == ["ant/ant_00000.jpg", "ant/ant_00001.jpg"]
    assert np.bincount(table.classes).tolist() == [3, 3, 3, 3]
    assert set(table.widths) == set(table.heights) == {8}
    record = json.loads((tmp_path / "out" / RECORD_FILE).read_text())
    assert (record["method"], record["class_group"]) == ("lpld", 1)
    assert record["teacher"]["weights_digest"] == teacher.description.weights_digest
    assert record["statistics_digest"] == statistics.digest()
    with Image.open(tmp_path / "out" / CONTACT_SHEET_FILE) as sheet:
        assert min(sheet.size) > 100, "small images are enlarged"


def test_a_killed_run_resumes_at_the_next_group(recover: Recover, tmp_path: Path, reused: list[str]) -> None:
    recover(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        recover(tmp_path / "cut", progress=stop_at(8))
    assert not (tmp_path / "cut" / CONTACT_SHEET_FILE).exists()
    # A kill between two files of a group leaves some of them: that group is made again.
    (tmp_path / "cut" / "bee" / "bee_00002.jpg").unlink()
    summary = recover(tmp_path / "cut")
    assert (summary.made_groups, summary.kept_groups, summary.complete) == (3, 1, True)
    (said,) = reused
    assert said.startswith(f"{tmp_path / 'cut'}: resumes, ")
    assert said.endswith(" of 4 groups of images reused")
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_killed_in_a_group_it_resumes_there(
    recover: Recover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dataclasses.replace(SETTINGS, ipc=6, iterations=6, class_group=2)
    recover(tmp_path / "whole", settings)
    monkeypatch.setattr("lpld_core.unfinished.SAVE_SECONDS", 0.0)
    for moment in (2, 6, 10, 12, 16, 22):
        out, calls = tmp_path / f"cut{moment}", list[int]()
        with pytest.raises(KeyboardInterrupt):
            recover(out, settings, progress=stop_at(moment))
        recover(out, settings, progress=noting(calls))
        assert calls[0] > moment % 12 - 2
        assert contents(out) == contents(tmp_path / "whole")
        assert not (out / ".unfinished").exists()


def test_two_processes_do_not_make_the_same_group(recover: Recover, tmp_path: Path) -> None:
    def meanwhile(done: int, total: int) -> None:
        with pytest.raises(PoolConflictError, match="another process is using this directory"):
            recover(tmp_path / "out")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recover(tmp_path / "out", progress=meanwhile)


def test_parts_make_the_same_images_as_one_run(recover: Recover, tmp_path: Path) -> None:
    recover(tmp_path / "whole")
    done = [recover(tmp_path / "parts", part=Part(number=n, of=3)) for n in (3, 1, 2)]
    assert [summary.made_groups for summary in done] == [1, 2, 1]
    assert [summary.complete for summary in done] == [False, False, True]
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_folder_of_another_run_is_refused(recover: Recover, tmp_path: Path) -> None:
    recover(tmp_path / "out")
    before = contents(tmp_path / "out")
    changed: dict[str, Any] = {"alpha": 0.1, "seed": 1, "ipc": 2, "roll_direction": "forward"}
    for name, value in {**changed, "format": "png"}.items():
        message = f"'{name}' differs .expected {getattr(SETTINGS, name)!r}, got {value!r}"
        with pytest.raises(PoolConflictError, match=message):
            recover(tmp_path / "out", dataclasses.replace(SETTINGS, **{name: value}))
    assert contents(tmp_path / "out") == before
    summary = recover(tmp_path / "out", dataclasses.replace(SETTINGS, class_group=4))
    assert (summary.made_groups, summary.kept_groups) == (0, 1)
    (tmp_path / "foreign" / "holiday").mkdir(parents=True)
    with pytest.raises(PoolConflictError, match="the folder is not empty"):
        recover(tmp_path / "foreign")


def test_of_two_runs_that_begin_in_one_folder_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run writes its record between this one's first look and its own record."""
    first, second = (RecoveredFolder(tmp_path / "out", NAMES, SETTINGS) for _ in range(2))

    def late(directory: Path, *, wait: bool = False) -> Any:
        monkeypatch.undo()
        first.prepare({"seed": 1})
        return workplace(directory, wait=wait)

    monkeypatch.setattr(folder_module, "workplace", late)
    with pytest.raises(PoolConflictError, match="'seed' differs"):
        second.prepare({"seed": 2})
    assert json.loads((tmp_path / "out" / RECORD_FILE).read_text()) == {"seed": 1}


def test_a_run_at_work_is_not_replaced_and_a_replaced_one_stops(tmp_path: Path) -> None:
    group = SETTINGS.groups(len(NAMES))[0]
    pixels = torch.zeros((len(group.members), 8, 8, 3), dtype=torch.uint8)
    first, second = (RecoveredFolder(tmp_path / "out", NAMES, SETTINGS) for _ in range(2))
    first.prepare({"seed": 1})
    with workplace(first.workplace(group)):
        with pytest.raises(PoolConflictError, match="another process is using this directory"):
            second.prepare({"seed": 2}, overwrite=True)
        first.save(group, pixels)
    second.prepare({"seed": 2}, overwrite=True)
    assert not second.has(group)
    with workplace(first.workplace(group)), pytest.raises(PoolConflictError, match="'seed' differs"):
        first.save(group, pixels)


def test_nan_keeps_finished_groups(recover: Recover, statistics: ClassStatistics, tmp_path: Path) -> None:
    statistics.layers[0].variance[2] = math.nan
    with pytest.raises(ComputationError, match=r"group 2 \(cat\): recovery of class 2 .*not finite"):
        recover(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").glob("[!.]*") if path.is_dir()) == ["ant", "bee"]
    assert len(list((tmp_path / "out").rglob("*.jpg"))) == 6


def test_class_names_must_fit(teacher: LoadedTeacher, statistics: ClassStatistics, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, statistics_kind="global", iterations=1)
    real = RealFolder.open(noisy_folder(tmp_path / "real", classes=2, images=1))
    with pytest.raises(InvalidArgumentError, match=r"expected 4 .the teacher's., got 2"):
        recover_images(teacher, tmp_path / "a", settings=settings, real=real)
    unsorted = dataclasses.replace(statistics, class_names=("d", "c", "b", "a"))
    with pytest.raises(InvalidArgumentError, match="not sorted"):
        recover_images(teacher, tmp_path / "b", settings=settings, statistics=unsorted)
    recover_images(teacher, tmp_path / "c", settings=settings)
    assert (tmp_path / "c" / "0003" / "0003_00002.jpg").exists()


def test_pixels_come_back_exactly() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 3, 16, 16)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    normalised = (pixels.float() / 255 - mean) / std
    assert torch.equal(to_pixels(normalised, MEAN, STD), pixels.permute(0, 2, 3, 1))


@pytest.mark.parametrize(("classes", "side"), [(2, 8), (10, 32), (10, 224)])
def test_contact_sheets_fit_a_screen_and_can_be_seen(tmp_path: Path, classes: int, side: int) -> None:
    assert [evenly(3, 10), evenly(1000, 5), evenly(1, 10)] == [[0, 1, 2], [0, 250, 500, 749, 999], [0]]
    names = [f"class {label}, of a rather long name indeed" for label in range(classes)]
    colours = np.random.default_rng(0).integers(0, 200, (classes, 10, 3))
    for label, number in np.ndindex(classes, 10):
        pixels = np.full((side, side, 3), colours[label, number], np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{label}_{number}.png")
    rows = [
        (name, [tmp_path / f"{label}_{number}.png" for number in range(10)])
        for label, name in enumerate(names)
    ]
    sheet = Image.open(io.BytesIO(contact_sheet(rows)))
    assert sheet.width <= 1600
    assert sheet.height <= 1000
    pixels = np.asarray(sheet)
    shown = (pixels == colours[0, 9]).all(axis=2)
    assert min(np.ptp(np.nonzero(shown), axis=1)) + 1 >= 60, "large enough to be seen"
    left = np.nonzero(shown)[1].min() - 9 * 100
    assert (pixels[:, : max(left, 40)] < 128).any(), "names stand on the left"
