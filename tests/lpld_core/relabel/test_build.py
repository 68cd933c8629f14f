from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lpld_core.relabel import build as building
from lpld_core.relabel.build import Build, build_pool, run_build, wanted_batches
from lpld_core.relabel.source import require_room
from lpld_core.settings import BuildSettings, Part, TeacherChoice
from lpld_core.teachers.ensemble import Ensemble, load_ensemble
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
from lpld_labels.render.images import scan_image_folder
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.settings import PruneSettings
from tests.lpld_core.image_folders import NETWORK, SIDE, SMALL_BUILD, sizes, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "folder")


@pytest.fixture(scope="module")
def table(images: Path) -> ImageTable:
    return scan_image_folder(images)


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    choice = TeacherChoice(name=NETWORK, weights="random", input_size=(SIDE, SIDE))
    return load_ensemble([choice], classes=3)


@pytest.fixture(scope="module")
def full(
    images: Path, table: ImageTable, ensemble: Ensemble, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A pool of 80 complete and 16 incomplete batches, built in one go."""
    path = tmp_path_factory.mktemp("pools") / "full"
    build_pool(images, path, SMALL_BUILD, ensemble=ensemble, table=table)
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
        complete = epochs * (images // batch_size)
        if complete < ratio:
            with pytest.raises(InvalidArgumentError, match="ratio is too large"):
                wanted_batches(images, replace(settings, ratio=ratio))
            break
        kept = wanted_batches(images, replace(settings, ratio=ratio))
        assert len(kept) == int(complete // ratio)
        assert set(kept) <= inner
        assert kept == sorted(kept)
        inner = set(kept)


def test_images_of_different_sizes_are_labelled(full: Path, table: ImageTable) -> None:
    assert len(sizes(table)) > 3
    with PoolReader(full) as pool:
        assert sizes(pool.images) == sizes(table)
        assert len(pool) == 96
        assert pool.header.seed == 7
        assert pool.header.teachers[0].weights_digest is not None
        (step,) = pool.header.lineage
        assert step.operation == "build"
        assert step.parameters["settings"]["seed"] == 7
        assert (step.parameters["batches"], step.parameters["threads"]) == (96, 1)


def test_labels_are_the_teachers_rounded_to_halves(full: Path, images: Path, ensemble: Ensemble) -> None:
    from lpld_labels.render import ImageStore, apply_views
    from lpld_labels.render.images import FolderImages

    with PoolReader(full) as pool:
        batch = pool.read((3, 2))
        pixels = apply_views(batch, ImageStore(FolderImages(images, pool.images)), pool.header.augmentation)
    np.testing.assert_array_equal(batch.labels, ensemble.logits(pixels).half().numpy())
    assert batch.labels.dtype == np.float16


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_make_the_same_pool(
    images: Path,
    table: ImageTable,
    ensemble: Ensemble,
    full: Path,
    tmp_path: Path,
    parts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(building, "SHARD_SECONDS", 0.0)
    path = tmp_path / "pool"
    shares = [Part(number=number + 1, of=parts) for number in reversed(range(parts))]
    results = [
        build_pool(images, path, replace(SMALL_BUILD, part=part, workers=2), ensemble=ensemble, table=table)
        for part in shares
    ]
    assert sum(result.labelled for result in results) == 96
    assert [result.manifest is None for result in results] == [True] * (parts - 1) + [False]
    assert build_pool(images, path, SMALL_BUILD, ensemble=ensemble, table=table).labelled == 0
    assert digest(tmp_path / "pool") == digest(full)


def test_an_interrupted_build_goes_on(
    images: Path,
    table: ImageTable,
    ensemble: Ensemble,
    full: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Shards of one batch, however fast the teacher is.
    monkeypatch.setattr(building, "SHARD_SECONDS", 0.0)
    counts: list[int] = []

    def interrupt(done: int, total: int) -> None:
        assert total == 96
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_pool(images, tmp_path / "pool", SMALL_BUILD, ensemble=ensemble, table=table, progress=interrupt)
    assert not (tmp_path / "pool/pool.json").exists()
    monkeypatch.undo()
    build_pool(
        images,
        tmp_path / "pool",
        SMALL_BUILD,
        ensemble=ensemble,
        table=table,
        progress=lambda done, total: counts.append(done),
    )
    assert 29 <= counts[0] <= 31
    assert counts[-1] == 96
    assert digest(tmp_path / "pool") == digest(full)


def test_growing_labels_only_the_difference(
    images: Path, table: ImageTable, ensemble: Ensemble, full: Path, tmp_path: Path
) -> None:
    path = tmp_path / "pool"
    labelled = []
    for ratio in (40, 20, 1):
        result = build_pool(images, path, replace(SMALL_BUILD, ratio=ratio), ensemble=ensemble, table=table)
        labelled.append(result.labelled)
    assert labelled == [2, 2, 92]
    assert digest(path) == digest(full)
    with PoolReader(path) as pool:
        recorded = [step.parameters["settings"]["ratio"] for step in pool.header.lineage]
        assert recorded == [40, 20, 1]
        assert pool.header.lineage[0].parent_digest is None
        assert pool.header.lineage[1].parent_digest is not None


@pytest.mark.parametrize("ratio", [40, 7.5, 2])
def test_a_ratio_builds_what_pruning_the_full_pool_keeps(
    images: Path, table: ImageTable, ensemble: Ensemble, full: Path, tmp_path: Path, ratio: float
) -> None:
    settings = replace(SMALL_BUILD, ratio=ratio)
    build_pool(images, tmp_path / "built", settings, ensemble=ensemble, table=table)
    with PoolReader(full) as pool:
        prune_pool(pool, tmp_path / "pruned", PruneSettings(ratio=ratio))
    assert digest(tmp_path / "built") == digest(tmp_path / "pruned")


def test_nothing_to_do_changes_nothing(
    images: Path, table: ImageTable, ensemble: Ensemble, tmp_path: Path
) -> None:
    settings = replace(SMALL_BUILD, epochs=2)
    build_pool(images, tmp_path / "pool", settings, ensemble=ensemble, table=table)
    files = {p: p.read_bytes() for p in (tmp_path / "pool").rglob("*") if p.is_file()}
    again = build_pool(images, tmp_path / "pool", settings, ensemble=ensemble, table=table)
    assert again.labelled == 0
    assert {p: p.read_bytes() for p in (tmp_path / "pool").rglob("*") if p.is_file()} == files


def test_a_pool_with_more_than_asked_for_is_left_alone(
    images: Path, table: ImageTable, ensemble: Ensemble, full: Path
) -> None:
    before = sorted(full.rglob("*"))
    with pytest.raises(PoolConflictError, match="prune it to ratio 40"):
        build_pool(images, full, replace(SMALL_BUILD, ratio=40), ensemble=ensemble, table=table)
    assert sorted(full.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seed": 8}, "seed"),
        ({"batch_size": 4}, "batch_size"),
        ({"codec": "int8"}, "codec.name"),
    ],
)
def test_another_pools_place_is_respected(
    images: Path,
    table: ImageTable,
    ensemble: Ensemble,
    tmp_path: Path,
    changes: dict[str, object],
    field: str,
) -> None:
    settings = replace(SMALL_BUILD, epochs=1)
    build_pool(images, tmp_path / "pool", settings, ensemble=ensemble, table=table)
    other = replace(settings, **changes)  # type: ignore[arg-type]
    with pytest.raises((StagingMismatchError, PoolConflictError), match=field):
        build_pool(images, tmp_path / "pool", other, ensemble=ensemble, table=table)


def test_codecs_round_what_halves_hold(
    images: Path, table: ImageTable, ensemble: Ensemble, tmp_path: Path
) -> None:
    for codec in ("f16", "f32", "int8"):
        settings = replace(SMALL_BUILD, codec=codec, epochs=1)
        build_pool(images, tmp_path / codec, settings, ensemble=ensemble, table=table)
    with PoolReader(tmp_path / "f16") as f16, PoolReader(tmp_path / "f32") as f32:
        exact = f32.read_labels((0, 0))
        np.testing.assert_array_equal(f16.read_labels((0, 0)), exact.astype(np.float16))
        assert not np.array_equal(f16.read_labels((0, 0)), exact)
        with PoolReader(tmp_path / "int8") as int8:
            encoded = int8.codec.encode(f16.read_labels((0, 0)))
            again = int8.codec.decode(encoded.payload, rows=5, classes=3)
            np.testing.assert_array_equal(int8.read_labels((0, 0)), again)


def test_labels_too_large_for_halves_name_the_image(
    images: Path, table: ImageTable, ensemble: Ensemble, tmp_path: Path
) -> None:
    class Loud(Ensemble):
        def logits(self, pixels: torch.Tensor) -> torch.Tensor:
            return super().logits(pixels) * 1e9

    with pytest.raises(InvalidBatchError, match=r"label of image .* is not finite"):
        build_pool(
            images,
            tmp_path / "pool",
            replace(SMALL_BUILD, epochs=1),
            ensemble=Loud(ensemble.teachers),
            table=table,
        )
    assert not (tmp_path / "pool/pool.json").exists()


def test_views_follow_the_seed_alone(full: Path) -> None:
    with PoolReader(full) as pool:
        order = np.argsort(keyed_generator(7, 3).random(27), kind="stable")
        np.testing.assert_array_equal(pool.read_views(BatchKey(3, 1)).images, order[5:10])


def test_a_pool_that_cannot_fit_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(PoolWriteError, match=r"no room for these labels .expected at least .* GB free"):
        require_room(tmp_path / "new" / "pool", rows=10**18, bytes_per_row=2000)
    require_room(tmp_path / "new" / "pool", rows=10, bytes_per_row=2000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ImageMismatchError, PoolConflictError])
def test_what_fails_while_labelling_is_no_reason_to_overwrite(
    images: Path,
    table: ImageTable,
    ensemble: Ensemble,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:
    """An image that was changed meanwhile, or another writer, must not cost what is labelled."""
    pool = tmp_path / "pool"
    build_pool(images, pool, replace(SMALL_BUILD, ratio=2), ensemble=ensemble, table=table)
    before = digest(pool)
    more = Build.prepare(images, pool, SMALL_BUILD, ensemble=ensemble, table=table)

    def fails(self: object, *job: object) -> None:
        raise error("later")

    with monkeypatch.context() as patched:
        patched.setattr(type(ONE_PROCESS), "run", fails)
        with pytest.raises(error, match="later"):
            run_build(more, overwrite=True)
    assert digest(pool) == before
    # Told at once, before anything is labelled: then it is replaced.
    other = Build.prepare(images, pool, replace(SMALL_BUILD, seed=5), ensemble=ensemble, table=table)
    with pytest.raises(PoolConflictError):
        run_build(other)
    assert run_build(other, overwrite=True).labelled == 96
    assert digest(pool) != before
