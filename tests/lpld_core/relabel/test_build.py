"""Building pools: which batches and labels, parts and growth, and which settings decide about them."""

import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lpld_core.relabel import build as building
from lpld_core.relabel.build import Build, BuildResult, build_pool, run_build, wanted_batches
from lpld_core.relabel.source import load_teachers, require_room
from lpld_core.settings import BuildSettings, Part, TeacherChoice
from lpld_core.teachers.ensemble import Ensemble
from lpld_labels.errors import (
    ImageMismatchError,
    InvalidArgumentError,
    InvalidBatchError,
    PoolConflictError,
    PoolWriteError,
    StagingMismatchError,
)
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.images import ImageTable
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import BatchKey
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.unfinished import partial_directory
from lpld_labels.render import ImageStore, apply_views
from lpld_labels.render.images import FolderImages
from lpld_labels.transforms.settings import PruneSettings
from tests.factories import prune_pool
from tests.lpld_core.image_folders import NETWORK, SIDE, SMALL_BUILD, sizes

Make = Callable[..., BuildResult]


@pytest.fixture(scope="session")
def make(images: Path, table: ImageTable, ensemble: Ensemble) -> Make:
    def build(
        path: Path, settings: BuildSettings = SMALL_BUILD, ensemble: Ensemble = ensemble, **options: Any
    ) -> BuildResult:
        return build_pool(images, path, settings, ensemble=ensemble, table=table, **options)

    return build


@pytest.fixture(scope="module")
def full(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool of 80 complete and 16 incomplete batches, built in one go."""
    path = tmp_path_factory.mktemp("pools") / "full"
    make(path)
    return path


def digest(path: Path) -> str:
    with PoolReader(path) as pool:
        return pool.manifest.content_digest


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 12), st.integers(0, 5))
def test_wanted_batches_nest(images: int, batch_size: int, epochs: int, seed: int) -> None:
    settings = BuildSettings(batch_size=batch_size, epochs=epochs, seed=seed)
    everything = wanted_batches(images, settings)
    assert len(everything) == epochs * -(-images // batch_size)
    inner = set(everything)
    for ratio in (1.5, 2, 4, 40):
        candidates = epochs * max(1, images // batch_size)
        if candidates < ratio:
            with pytest.raises(InvalidArgumentError, match="ratio is too large"):
                wanted_batches(images, replace(settings, ratio=ratio))
            break
        kept = wanted_batches(images, replace(settings, ratio=ratio))
        assert len(kept) == int(candidates // ratio)
        assert set(kept) <= inner
        assert kept == sorted(kept)
        inner = set(kept)


def test_labels_are_the_teachers_of_views_that_follow_from_the_seed(
    full: Path, table: ImageTable, images: Path, ensemble: Ensemble
) -> None:
    assert len(sizes(table)) > 3, "images of different sizes are labelled"
    with PoolReader(full) as pool:
        assert sizes(pool.images) == sizes(table)
        assert (len(pool), pool.header.seed) == (96, 7)
        assert pool.header.teachers[0].weights_digest is not None
        (step,) = pool.header.lineage
        assert (step.operation, step.parameters["settings"]["seed"]) == ("build", 7)
        assert step.parameters["batches"] == 96
        assert step.parameters["threads"] >= 1
        batch = pool.read((3, 2))
        pixels = apply_views(batch, ImageStore(FolderImages(images, pool.images)), pool.header.augmentation)
        order = np.argsort(keyed_generator(7, 3).random(27), kind="stable")
        np.testing.assert_array_equal(pool.read_views(BatchKey(3, 1)).images, order[5:10])
    np.testing.assert_array_equal(batch.labels, ensemble.logits(pixels).half().numpy())
    assert batch.labels.dtype == np.float16


def test_an_interrupted_build_resumes(
    make: Make, full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def interrupt(done: int, total: int) -> None:
        assert total == 96
        if done == 30:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(building, "SHARD_SECONDS", 0.0)  # shards of one batch, however fast the teacher is
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "pool", progress=interrupt)
    assert not (tmp_path / "pool/pool.json").exists()
    make(tmp_path / "pool", progress=lambda done, total: counts.append(done))
    assert 29 <= counts[0] <= 31
    assert counts[-1] == 96
    assert digest(tmp_path / "pool") == digest(full)


def test_growing_labels_only_the_difference(make: Make, full: Path, tmp_path: Path) -> None:
    path = tmp_path / "pool"
    labelled = [make(path, replace(SMALL_BUILD, ratio=ratio)).labelled for ratio in (40, 20, 1)]
    assert labelled == [2, 2, 92]
    assert digest(path) == digest(full)
    with PoolReader(path) as pool:
        lineage = pool.header.lineage
    assert [step.parameters["settings"]["ratio"] for step in lineage] == [40, 20, 1]
    assert [step.parent_digest is None for step in lineage] == [True, False, False]


@pytest.mark.parametrize("ratio", [40, 7.5])
def test_a_ratio_builds_what_pruning_the_full_pool_keeps(
    make: Make, full: Path, tmp_path: Path, ratio: float
) -> None:
    make(tmp_path / "built", replace(SMALL_BUILD, ratio=ratio))
    with PoolReader(full) as pool:
        prune_pool(pool, tmp_path / "pruned", PruneSettings(ratio=ratio))
    assert digest(tmp_path / "built") == digest(tmp_path / "pruned")


def test_a_ratio_keeps_as_many_incomplete_batches_as_pruning_if_none_is_complete(
    make: Make, tmp_path: Path
) -> None:
    few = replace(SMALL_BUILD, batch_size=64, epochs=5)
    make(tmp_path / "whole", few)
    make(tmp_path / "built", replace(few, ratio=2))
    with PoolReader(tmp_path / "whole") as pool:
        prune_pool(pool, tmp_path / "pruned", PruneSettings(ratio=2))
    assert digest(tmp_path / "built") == digest(tmp_path / "pruned")


def test_a_pool_that_has_all_or_more_is_left_alone(make: Make, pool_path: Path) -> None:
    files = {path: path.read_bytes() for path in pool_path.rglob("*") if path.is_file()}
    assert make(pool_path, replace(SMALL_BUILD, epochs=3)).labelled == 0
    with pytest.raises(PoolConflictError, match="prune it to ratio 5"):
        make(pool_path, replace(SMALL_BUILD, epochs=3, ratio=5))
    assert {path: path.read_bytes() for path in pool_path.rglob("*") if path.is_file()} == files


def test_codecs_round_what_halves_hold(make: Make, tmp_path: Path) -> None:
    for codec in ("f16", "f32", "int8"):
        make(tmp_path / codec, replace(SMALL_BUILD, codec=codec, epochs=1))
    with PoolReader(tmp_path / "f16") as f16, PoolReader(tmp_path / "f32") as f32:
        exact = f32.read_labels((0, 0))
        np.testing.assert_array_equal(f16.read_labels((0, 0)), exact.astype(np.float16))
        assert not np.array_equal(f16.read_labels((0, 0)), exact)
        with PoolReader(tmp_path / "int8") as int8:
            encoded = int8.codec.encode(f16.read_labels((0, 0)))
            again = int8.codec.decode(encoded.payload, rows=5, classes=3)
            np.testing.assert_array_equal(int8.read_labels((0, 0)), again)


def test_labels_too_large_for_halves_name_the_image(make: Make, ensemble: Ensemble, tmp_path: Path) -> None:
    class Loud(Ensemble):
        def logits(self, pixels: torch.Tensor) -> torch.Tensor:
            return super().logits(pixels) * 1e9

    with pytest.raises(InvalidBatchError, match=r"label of image .* is not finite"):
        make(tmp_path / "pool", replace(SMALL_BUILD, epochs=1), Loud(ensemble.teachers))
    assert not (tmp_path / "pool/pool.json").exists()


def test_a_pool_that_cannot_fit_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(
        PoolWriteError, match=r"not enough disk space for the labels .expected at least .* GB free"
    ):
        require_room(tmp_path / "new" / "pool", rows=10**18, bytes_per_row=2000)
    require_room(tmp_path / "new" / "pool", rows=10, bytes_per_row=2000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ratio", [1.0, 1e9])
def test_more_batches_than_are_ever_listed_are_refused(ratio: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"too many label batches.*16777216, got 3000000000"):
        wanted_batches(27, BuildSettings(batch_size=9, epochs=10**9, ratio=ratio))


@pytest.mark.parametrize("error", [ImageMismatchError, PoolConflictError])
def test_what_fails_while_labelling_is_no_reason_to_overwrite(
    images: Path,
    ensemble: Ensemble,
    pool_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:
    """An image that was changed meanwhile, or another writer, must not cost what is labelled."""
    pool = Path(shutil.copytree(pool_path, tmp_path / "pool"))
    four = replace(SMALL_BUILD, epochs=4)
    more = Build.prepare(images, pool, four, ensemble=ensemble)

    def fails(self: object, *job: object) -> None:
        raise error("later")

    with monkeypatch.context() as patched:
        patched.setattr(type(ONE_PROCESS), "run", fails)
        with pytest.raises(error, match="later"):
            run_build(more, overwrite=True)
    assert digest(pool) == digest(pool_path)
    # A conflict that is found before anything is labelled: then it is replaced.
    other = Build.prepare(images, pool, replace(four, seed=5), ensemble=ensemble)
    with pytest.raises(PoolConflictError):
        run_build(other)
    assert run_build(other, overwrite=True).labelled == 24
    assert digest(pool) != digest(pool_path)


TEACHER = TeacherChoice(name=NETWORK, weights="random", input_size=(SIDE, SIDE))
SMALL = BuildSettings(epochs=4, batch_size=5, seed=7, resize="pil", teachers=(TEACHER,), threads=1)

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
    "amp": "bf16",
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
def half(images: Path, table: ImageTable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unfinished work of a build of which one of two parts is done."""
    path = tmp_path_factory.mktemp("half") / "pool"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(building, "SHARD_SECONDS", 0.0)
        build_pool(images, path, replace(SMALL, part=Part(number=1, of=2)), table=table)
    return partial_directory(path)


@pytest.fixture
def begun(half: Path, tmp_path: Path) -> Path:
    shutil.copytree(half, partial_directory(tmp_path / "pool"))
    return tmp_path / "pool"


@pytest.fixture(scope="module")
def whole(images: Path, table: ImageTable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "pool"
    build_pool(images, path, SMALL, table=table)
    return path


def test_every_setting_is_classified() -> None:
    kinds = [set(DECIDES), RECORDED, MAY_GROW, set(DECIDES_NOTHING)]
    assert set().union(*kinds) == {field.name for field in fields(BuildSettings)}
    assert sum(map(len, kinds)) == len(fields(BuildSettings))


@pytest.mark.parametrize("name", DECIDES)
def test_other_settings_neither_resume_nor_grow(
    begun: Path, whole: Path, images: Path, table: ImageTable, name: str
) -> None:
    other = replace(SMALL, **{name: DECIDES[name]}, epochs=5)
    for part in (None, Part(number=2, of=2)) if name == "seed" else (None,):
        with pytest.raises(StagingMismatchError, match="differs") as caught:
            build_pool(images, begun, replace(other, epochs=4, part=part), table=table)
        assert "--overwrite" in caught.value.hint
    assert not (begun / "pool.json").exists()
    before = digest(whole)
    with pytest.raises(PoolConflictError):
        build_pool(images, whole, other, table=table)
    assert digest(whole) == before


@pytest.mark.parametrize("name", DECIDES_NOTHING)
def test_what_decides_nothing_may_differ(
    begun: Path, whole: Path, images: Path, table: ImageTable, tmp_path: Path, name: str
) -> None:
    value: Any = tmp_path / "cache" if name == "image_cache" else DECIDES_NOTHING[name]
    ensemble = load_teachers(images, SMALL)
    build_pool(images, begun, replace(SMALL, **{name: value}), ensemble=ensemble, table=table)
    assert digest(begun) == digest(whole)


def test_an_ensemble_that_is_given_says_itself_whether_it_is_amp(
    begun: Path, images: Path, table: ImageTable
) -> None:
    ensemble = load_teachers(images, replace(SMALL, amp="bf16"))
    with pytest.raises(StagingMismatchError, match=r"'.*amp' differs"):
        build_pool(images, begun, SMALL, ensemble=ensemble, table=table)


@pytest.mark.parametrize(("name", "other"), [("amp", "bf16"), ("amp", "fp16"), ("device", "meta")])
def test_unfinished_work_keeps_its_precision_and_its_type_of_device(
    begun: Path, images: Path, table: ImageTable, name: str, other: Any
) -> None:
    settings = replace(SMALL, **{name: other})
    ensemble = replace(load_teachers(images, SMALL), amp=settings.amp)
    with pytest.raises(StagingMismatchError, match=rf"'.*{name}' differs.*got '{other}'"):
        build_pool(images, begun, settings, ensemble=ensemble, table=table)
    assert not (begun / "pool.json").exists()


def test_a_finished_pool_grows_on_another_device_and_records_both(
    whole: Path, images: Path, table: ImageTable, tmp_path: Path
) -> None:
    pool = shutil.copytree(whole, tmp_path / "pool")
    ensemble = load_teachers(images, SMALL)
    build_pool(images, pool, replace(SMALL, epochs=5, device="meta"), ensemble=ensemble, table=table)
    with PoolReader(pool) as grown:
        assert grown.manifest.counts.epochs == 5
        recorded = [step.parameters["settings"] for step in grown.header.lineage]
    assert [(known["amp"], known["device"]) for known in recorded] == [("off", "cpu"), ("off", "meta")]


def test_the_unfinished_work_of_another_command_is_left_alone(
    make: Make, pool_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpld_labels.pool.plan.SHARD_BATCHES", 1)  # work without a finished shard is dropped

    def stop(done: int, total: int) -> None:
        if done > 1:
            raise KeyboardInterrupt

    with PoolReader(pool_path) as pool, pytest.raises(KeyboardInterrupt):
        prune_pool(pool, tmp_path / "pool", settings=PruneSettings(ratio=2), progress=stop)
    assert partial_directory(tmp_path / "pool").is_dir()
    with pytest.raises(StagingMismatchError, match="unfinished work does not match"):
        make(tmp_path / "pool")
