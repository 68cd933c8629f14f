"""What a build's settings decide: work that goes on, parts and pools that grow agree on all of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lpld_core.relabel import build as building
from lpld_core.relabel.build import Build, build_pool, run_build
from lpld_core.relabel.source import load_teachers
from lpld_core.settings import BuildSettings, Part, TeacherChoice
from lpld_labels.errors import PoolConflictError, StagingMismatchError
from lpld_labels.format.images import ImageTable
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.unfinished import partial_directory
from lpld_labels.render.images import scan_image_folder
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.settings import PruneSettings
from tests.lpld_core.image_folders import NETWORK, SIDE, write_images

TEACHER = TeacherChoice(name=NETWORK, weights="random", input_size=(SIDE, SIDE))
SMALL = BuildSettings(epochs=4, batch_size=5, seed=7, resize="pil", teachers=(TEACHER,), threads=1)
HALF = Part(number=1, of=2)

DECIDES: dict[str, Any] = {
    "batch_size": 4,
    "crop_scale": (0.2, 1.0),
    "flip": False,
    "mix": "cutmix",
    "cutout_fraction": 0.5,
    "patch_grid": 2,
    "resize": "torch",
    "seed": 8,
    "replayable_by": "lpld",
    "teachers": (replace(TEACHER, mean=(0.1, 0.2, 0.3), std=(0.2, 0.2, 0.2)),),
    "codec": "f32",
    "views": "drawn",
    "amp": True,
}
"""Settings that decide labels, views or how they are stored, and another value for each."""
RECORDED = {"fewer_classes"}
"""Decides whether teachers can be loaded at all."""
MAY_GROW = {"epochs", "ratio", "pack"}
"""Settings that say how much there is: a published pool may grow, and must not shrink."""
DECIDES_NOTHING: dict[str, Any] = {
    "device": "cpu:0",  # rounding at most, as are threads
    "threads": 2,
    "workers": 2,
    "image_cache": Path("cache"),
    "part": Part(number=2, of=2),
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "folder")


@pytest.fixture(scope="module")
def table(images: Path) -> ImageTable:
    return scan_image_folder(images)


@pytest.fixture(scope="module")
def half(images: Path, table: ImageTable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unfinished work of a build of which one of two parts is done."""
    path = tmp_path_factory.mktemp("half") / "pool"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(building, "SHARD_SECONDS", 0.0)
        build_pool(images, path, replace(SMALL, part=HALF), table=table)
    return partial_directory(path)


@pytest.fixture
def begun(half: Path, tmp_path: Path) -> Path:
    """The place of a pool, with a copy of it beside."""
    shutil.copytree(half, partial_directory(tmp_path / "pool"))
    return tmp_path / "pool"


@pytest.fixture(scope="module")
def whole(images: Path, table: ImageTable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pool, built in one go."""
    path = tmp_path_factory.mktemp("whole") / "pool"
    build_pool(images, path, SMALL, table=table)
    return path


@pytest.fixture(autouse=True)
def one_thread_after() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


def digest(path: Path) -> str:
    with PoolReader(path) as pool:
        return pool.manifest.content_digest


def test_every_setting_is_classified() -> None:
    """A new one belongs among `recorded_settings`, or among those that decide nothing."""
    kinds = [set(DECIDES), RECORDED, MAY_GROW, set(DECIDES_NOTHING)]
    assert set().union(*kinds) == {field.name for field in fields(BuildSettings)}
    assert sum(map(len, kinds)) == len(fields(BuildSettings))


@pytest.mark.parametrize("name", DECIDES)
@pytest.mark.parametrize("part", [None, Part(number=2, of=2)])
def test_unfinished_work_of_other_settings_is_not_gone_on_with(
    begun: Path, images: Path, table: ImageTable, name: str, part: Part | None
) -> None:
    other = replace(SMALL, **{name: DECIDES[name]}, part=part)
    with pytest.raises(StagingMismatchError, match="differs") as caught:
        build_pool(images, begun, other, table=table)
    assert "--overwrite" in caught.value.hint
    assert not (begun / "pool.json").exists()


@pytest.mark.parametrize("name", DECIDES)
def test_a_published_pool_does_not_grow_with_other_settings(
    tmp_path: Path, images: Path, table: ImageTable, name: str
) -> None:
    build_pool(images, tmp_path / "pool", replace(SMALL, epochs=2), table=table)
    before = digest(tmp_path / "pool")
    with pytest.raises(PoolConflictError):
        build_pool(images, tmp_path / "pool", replace(SMALL, **{name: DECIDES[name]}), table=table)
    assert digest(tmp_path / "pool") == before


@pytest.mark.parametrize("name", DECIDES_NOTHING)
def test_what_decides_nothing_may_differ(
    begun: Path, whole: Path, images: Path, table: ImageTable, tmp_path: Path, name: str
) -> None:
    value: Any = tmp_path / "cache" if name == "image_cache" else DECIDES_NOTHING[name]
    ensemble = load_teachers(images, SMALL)
    build_pool(images, begun, replace(SMALL, **{name: value}), ensemble=ensemble, table=table)
    assert digest(begun) == digest(whole)


@pytest.mark.parametrize("change", [{"amp": True}, {"replayable_by": "lpld"}])
def test_other_work_is_replaced_if_asked_for(
    begun: Path, images: Path, table: ImageTable, tmp_path: Path, change: dict[str, Any]
) -> None:
    other = replace(SMALL, **change)
    build = Build.prepare(images, begun, other, table=table)
    assert run_build(build, overwrite=True).labelled == 24
    build_pool(images, tmp_path / "alone", other, table=table)
    assert digest(begun) == digest(tmp_path / "alone")


def test_an_ensemble_that_is_given_says_itself_whether_it_is_amp(
    begun: Path, images: Path, table: ImageTable
) -> None:
    ensemble = load_teachers(images, replace(SMALL, amp=True))
    with pytest.raises(StagingMismatchError, match=r"'.*amp' differs"):
        build_pool(images, begun, SMALL, ensemble=ensemble, table=table)


def test_the_unfinished_work_of_another_command_is_left_alone(
    images: Path, table: ImageTable, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpld_labels.pool.plan.SHARD_BATCHES", 1)  # work without a finished shard is dropped

    def stop(done: int, total: int) -> None:
        if done > 1:
            raise KeyboardInterrupt

    with PoolReader(whole) as pool, pytest.raises(KeyboardInterrupt):
        prune_pool(pool, tmp_path / "pool", settings=PruneSettings(ratio=2), progress=stop)
    assert partial_directory(tmp_path / "pool").is_dir()
    with pytest.raises(StagingMismatchError, match="unfinished work for something else"):
        build_pool(images, tmp_path / "pool", SMALL, table=table)
