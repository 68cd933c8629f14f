"""Loaders: what they yield, in which order and from where on."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader import PoolBatch, PoolLoader, label_loader, pool_loader
from lpld_labels.loader.pool_loader import StepSampler
from lpld_labels.loader.schedule import SAMPLINGS, Schedule
from lpld_labels.render import ImageStore, apply_views, draw_views, normalise
from lpld_labels.render.images import FolderImages
from tests.lpld_labels.loader.loader_pools import KINDS, MEAN, STD, build, write_images

IMAGES, BATCH, PER_EPOCH = 80, 32, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), IMAGES)


@pytest.fixture(scope="module")
def pools(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, PoolReader]:
    root = tmp_path_factory.mktemp("pools")
    return {kind: build(root / kind, folder, kind, epochs=4, batch_size=BATCH) for kind in KINDS}


@pytest.fixture(scope="module")
def seen_by_teacher(
    pools: dict[str, PoolReader], folder: Path
) -> dict[str, dict[tuple[int, int], torch.Tensor]]:
    """What labelling feeds the teacher, drawn anew and not read from the pool."""
    tensors: dict[str, dict[tuple[int, int], torch.Tensor]] = {}
    for kind, pool in pools.items():
        store = ImageStore(FolderImages(folder, pool.images))
        augmentation = pool.header.augmentation
        tensors[kind] = {}
        for epoch, batch in pool.keys:
            views = draw_views(augmentation, pool.images, seed=5, epoch=epoch, batch=batch, batch_size=BATCH)
            tensors[kind][epoch, batch] = normalise(apply_views(views, store, augmentation), MEAN, STD)
    return tensors


def open_loader(pool: PoolReader, folder: Path, **options: Any) -> PoolLoader:
    return pool_loader(pool, folder, **{"batches_per_epoch": PER_EPOCH, **options})


def row_keys(batches: Sequence[PoolBatch]) -> list[tuple[int, ...]]:
    return [tuple(row) for batch in batches for row in batch.keys.tolist()]


def scheduled(
    pool: PoolReader, epoch: int, sampling: str = "shuffled", seed: int = 0
) -> list[tuple[int, ...]]:
    """The rows of an epoch as its sampling says."""
    schedule = Schedule.of(pool, sampling=sampling, seed=seed, batches_per_epoch=PER_EPOCH)
    rows: list[tuple[int, ...]] = []
    for place in schedule.places(epoch).tolist():
        rows += [(*pool.index.key(place), slot) for slot in range(int(pool.index.rows[place]))]
    return rows


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 7, 64, 200])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_bit_for_bit_what_the_teacher_saw_and_said(
    pools: dict[str, PoolReader],
    seen_by_teacher: dict[str, dict[tuple[int, int], torch.Tensor]],
    folder: Path,
    kind: str,
    batch_size: int,
    num_workers: int,
) -> None:
    pool = pools[kind]
    loader = open_loader(pool, folder, batch_size=batch_size, num_workers=num_workers)
    assert isinstance(loader, DataLoader)
    length = len(loader)
    batches = list(loader)
    assert len(batches) == length
    assert {len(batch.images) for batch in batches[:-1]} <= {batch_size}
    keys = row_keys(batches)
    assert keys == scheduled(pool, 0)
    images = torch.cat([batch.images for batch in batches])
    expected = torch.stack([seen_by_teacher[kind][epoch, batch][slot] for epoch, batch, slot in keys])
    assert torch.equal(images, expected)
    labels = np.concatenate([batch.labels.numpy() for batch in batches])
    stored = np.stack([pool.read_labels((e, b), dtype=np.float32)[slot] for e, b, slot in keys])
    np.testing.assert_array_equal(labels, stored)
    classes = pool.images.classes
    for position, (epoch, batch, slot) in enumerate(keys):
        views = pool.read_views((epoch, batch))
        found = batches[position // batch_size]
        row = position % batch_size
        partner = slot if views.mix is None else int(views.mix.partner[slot])
        assert int(found.targets[row]) == classes[views.images[slot]]
        assert int(found.partner_targets[row]) == classes[views.images[partner]]
        assert float(found.mix_strength[row]) == np.float32(1 if views.mix is None else views.mix.strength)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_epochs_follow_each_other_and_break_ends_one(
    pools: dict[str, PoolReader], folder: Path, num_workers: int
) -> None:
    pool = pools["cutmix"]
    loader = open_loader(pool, folder, batch_size=50, num_workers=num_workers)
    assert [row_keys(list(loader)) for _ in range(2)] == [scheduled(pool, 0), scheduled(pool, 1)]
    for batch in loader:
        assert row_keys([batch]) == scheduled(pool, 2)[:50]
        break
    assert row_keys(list(loader)) == scheduled(pool, 3)
    loader.set_epoch(1)
    assert row_keys(list(loader)) == scheduled(pool, 1)
    assert isinstance(loader.sampler, StepSampler)
    loader.sampler.set_epoch(7)
    assert row_keys(list(loader)) == scheduled(pool, 7)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_sampling_plays_its_schedule(pools: dict[str, PoolReader], folder: Path, sampling: str) -> None:
    pool = pools["none"]
    loader = open_loader(pool, folder, sampling=sampling, seed=3)
    for epoch in range(3):
        length = len(loader)
        batches = list(loader)
        assert len(batches) == length
        assert row_keys(batches) == scheduled(pool, epoch, sampling, 3)


def test_drop_last_leaves_out_a_short_batch_and_stays_in_step(
    pools: dict[str, PoolReader], folder: Path
) -> None:
    pool = pools["cutmix"]
    loader = open_loader(pool, folder, batch_size=50, drop_last=True, num_workers=1)
    for epoch in range(2):
        rows = scheduled(pool, epoch)
        assert len(loader) == len(rows) // 50
        assert row_keys(list(loader)) == rows[: len(rows) // 50 * 50]


@pytest.mark.parametrize(
    ("workers", "stop"), [((0, 0), 0), ((0, 0), 1), ((0, 0), 9), ((0, 2), 5), ((2, 0), 5), ((1, 2), 1)]
)
def test_resumes_at_the_next_batch_with_another_number_of_workers(
    pools: dict[str, PoolReader], folder: Path, workers: tuple[int, int], stop: int
) -> None:
    pool = pools["cutmix"]
    whole = scheduled(pool, 0) + scheduled(pool, 1) + scheduled(pool, 2)
    first = open_loader(pool, folder, batch_size=27, num_workers=workers[0])
    done = row_keys(list(first))
    iterator = iter(first)
    done += row_keys([next(iterator) for _ in range(stop)])
    # Workers are ahead by now; the state is that of what was yielded.
    state = json.loads(json.dumps(first.state_dict()))
    second = open_loader(pool, folder, batch_size=27, num_workers=workers[1])
    second.load_state_dict(state)
    assert (done + row_keys([*second, *second]))[: len(whole)] == whole


@pytest.mark.parametrize("drop_last", [False, True])
def test_after_the_last_batch_comes_the_next_epoch(
    pools: dict[str, PoolReader], folder: Path, drop_last: bool
) -> None:
    loader = open_loader(pools["none"], folder, batch_size=60, drop_last=drop_last)
    iterator = iter(loader)
    for _ in range(len(loader)):
        assert loader.state_dict()["epoch"] == 0
        next(iterator)
    state = loader.state_dict()
    assert (state["epoch"], state["done"]) == (1, 0)
    resumed = open_loader(pools["none"], folder, batch_size=60, drop_last=drop_last)
    resumed.load_state_dict(state)
    assert row_keys([next(iter(resumed))]) == scheduled(pools["none"], 1)[:60]


def test_another_batch_size_may_resume(pools: dict[str, PoolReader], folder: Path) -> None:
    pool = pools["none"]
    first = open_loader(pool, folder, batch_size=10)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    second = open_loader(pool, folder, batch_size=64)
    second.load_state_dict(first.state_dict())
    assert row_keys(list(second)) == scheduled(pool, 0)[30:]


def test_a_kept_batch_is_not_written_over(pools: dict[str, PoolReader], folder: Path) -> None:
    loader = open_loader(pools["cutmix"], folder, batch_size=16)
    kept, rows = [], []
    for batch in loader:
        # Views of a batch keep its memory, as the batch itself does.
        kept.append(batch.images[::5])
        rows.append(batch.images[::5].clone())
        del batch
    assert all(torch.equal(held, row) for held, row in zip(kept, rows, strict=True))


def test_memory_of_dropped_batches_is_used_again(pools: dict[str, PoolReader], folder: Path) -> None:
    loader = open_loader(pools["none"], folder, batch_size=BATCH)
    addresses = []
    for batch in loader:
        addresses.append(batch.images.data_ptr())
        del batch
    assert len(set(addresses)) <= 2


def test_softened_labels(pools: dict[str, PoolReader], folder: Path, tmp_path: Path) -> None:
    plain = next(iter(open_loader(pools["none"], folder)))
    soft = next(iter(open_loader(pools["none"], folder, temperature=4.0)))
    torch.testing.assert_close(soft.labels, torch.softmax(plain.labels / 4, dim=1))
    pool = build(tmp_path / "p", folder, label_kind="probabilities", batch_size=BATCH)
    stored = next(iter(open_loader(pool, folder)))
    torch.testing.assert_close(stored.labels.sum(dim=1), torch.ones(len(stored.labels)), atol=0.01, rtol=0)
    soft = next(iter(open_loader(pool, folder, temperature=1.0)))
    torch.testing.assert_close(soft.labels, stored.labels, atol=0.01, rtol=0)


def test_the_temperature_may_depend_on_the_epoch(pools: dict[str, PoolReader], folder: Path) -> None:
    def falling(epoch: int) -> float:
        return 20.0 * 0.7**epoch

    plain, soft = open_loader(pools["none"], folder), open_loader(pools["none"], folder, temperature=falling)
    for epoch in range(3):
        for stored, softened in zip(plain, soft, strict=True):
            expected = torch.softmax(stored.labels / falling(epoch), dim=1)
            assert torch.equal(softened.labels, expected)
    # A resumed run is at the temperature of its epoch.
    resumed = open_loader(pools["none"], folder, temperature=falling)
    resumed.set_epoch(5)
    plain.set_epoch(5)
    expected = torch.softmax(next(iter(plain)).labels / falling(5), dim=1)
    assert torch.equal(next(iter(resumed)).labels, expected)
    with pytest.raises(InvalidArgumentError, match="temperature is out of range"):
        next(iter(open_loader(pools["none"], folder, temperature=lambda epoch: -1.0)))


@pytest.mark.parametrize("batch_size", [None, 30])
def test_batches_come_in_the_form_a_trainer_wants(
    pools: dict[str, PoolReader], folder: Path, batch_size: int | None
) -> None:
    loaders = [
        open_loader(pools["cutmix"], folder, batch_size=batch_size, transform=form)
        for form in (None, PoolBatch._asdict, lambda batch: (batch.images, batch.labels))
    ]
    for batch, named, pair in zip(*loaders, strict=True):
        assert isinstance(batch, PoolBatch)
        assert list(named) == list(PoolBatch._fields)
        assert all(torch.equal(named[name], getattr(batch, name)) for name in named)
        assert type(pair) is tuple
        assert torch.equal(pair[0], batch.images)
        assert torch.equal(pair[1], batch.labels)


def test_the_dataset_has_the_epochs_rows(pools: dict[str, PoolReader], folder: Path) -> None:
    loader = open_loader(pools["cutmix"], folder, batch_size=7, rank=1, world_size=2)
    for epoch in range(3):
        assert len(loader.dataset) == len(scheduled(pools["cutmix"], epoch))
        list(loader)


def test_normalisation_can_be_given_and_must_be_known(folder: Path, tmp_path: Path) -> None:
    pool = build(tmp_path / "pool", folder, "none", teachers=())
    with pytest.raises(InvalidArgumentError, match=r"normalisation is not known.*give both mean and std"):
        pool_loader(pool, folder)
    batch = next(iter(pool_loader(pool, folder, normalise=((0, 0, 0), (1 / 255, 1 / 255, 1 / 255)))))
    assert 200 < float(batch.images.max()) <= 255.01


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", ["cutmix", "mixup"])
def test_whole_label_batches_with_pixels_as_they_are(
    pools: dict[str, PoolReader], folder: Path, kind: str, num_workers: int
) -> None:
    pool = pools[kind]
    loader = open_loader(pool, folder, normalise=False, sampling="stored", num_workers=num_workers)
    store = ImageStore(FolderImages(folder, pool.images))
    assert len(loader) == PER_EPOCH
    for key, batch in zip(pool.keys, loader, strict=False):
        assert {tuple(row) for row in batch.keys[:, :2].tolist()} == {key}
        assert batch.images.dtype == (torch.uint8 if kind == "cutmix" else torch.float32)
        expected = apply_views(pool.read_views(key), store, pool.header.augmentation)
        assert torch.equal(batch.images.float(), expected)
        np.testing.assert_array_equal(batch.labels.numpy(), pool.read_labels(key, dtype=np.float32))
    by_row = open_loader(pool, folder, batch_size=5, sampling="stored")
    with pytest.raises(InvalidArgumentError, match="field 'unit' differs"):
        by_row.load_state_dict(loader.state_dict())


def test_pools_smaller_than_an_epoch_work(folder: Path, tmp_path: Path) -> None:
    pool = build(tmp_path / "pool", folder, epochs=1, batch_size=40)
    loader = pool_loader(pool, folder, batches_per_epoch=5, batch_size=33)
    assert sum(len(batch.images) for batch in loader) == 200


@pytest.mark.parametrize("cached", [True, False])
def test_cache_directory_is_filled_and_used(folder: Path, tmp_path: Path, cached: bool) -> None:
    pool = build(tmp_path / "pool", folder, batch_size=BATCH)
    cache = tmp_path / "cache" if cached else None
    batches = list(open_loader(pool, folder, num_workers=2, cache_directory=cache))
    assert bool(list(tmp_path.glob("cache/*.pixels"))) == cached
    again = list(open_loader(pool, folder, cache_directory=cache))
    assert all(torch.equal(a.images, b.images) for a, b in zip(batches, again, strict=True))


def test_spawned_workers_do_as_forked_ones(pools: dict[str, PoolReader], folder: Path) -> None:
    pool = pools["mixup"]
    options: dict[str, Any] = {"batches_per_epoch": 2, "batch_size": 20}
    spawned = pool_loader(pool, folder, num_workers=1, multiprocessing_context="spawn", **options)
    here = pool_loader(pool, folder, **options)
    assert all(torch.equal(a.images, b.images) for a, b in zip(spawned, here, strict=True))


def test_the_global_generator_is_left_alone(pools: dict[str, PoolReader], folder: Path) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    list(open_loader(pools["none"], folder, num_workers=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_states_of_other_runs_are_refused(pools: dict[str, PoolReader], folder: Path) -> None:
    state = open_loader(pools["none"], folder).state_dict()
    for options, field in (
        ({"seed": 1}, "seed"),
        ({"sampling": "stored"}, "sampling"),
        ({"batches_per_epoch": 2}, "batches_per_epoch"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"another run: field '{field}' differs"):
            open_loader(pools["none"], folder, **options).load_state_dict(state)
    with pytest.raises(InvalidArgumentError, match="field 'pool' differs"):
        open_loader(pools["cutmix"], folder).load_state_dict(state)


def test_a_second_iteration_ends_the_first(pools: dict[str, PoolReader], folder: Path) -> None:
    loader = open_loader(pools["none"], folder, batch_size=10)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert row_keys([next(second)]) == scheduled(pools["none"], 1)[:10]
    with pytest.raises(InvalidArgumentError, match="another iteration"):
        next(first)
    assert row_keys([next(second)]) == scheduled(pools["none"], 1)[10:20]


@pytest.mark.parametrize("read", [0, 1, 4])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_pickled_loader_goes_on_where_it_was(tmp_path: Path, read: int, num_workers: int) -> None:
    """Before an epoch, within it, and after it (an epoch has 4 steps)."""
    folder = write_images(tmp_path / "images", 16)
    loader = pool_loader(
        build(tmp_path / "pool", folder, batch_size=8), folder, batch_size=4, num_workers=num_workers
    )
    batches = iter(loader)
    for _ in range(read):
        next(batches)
    if read == 4:
        assert next(batches, None) is None
    copy = pickle.loads(pickle.dumps(loader))
    expected = list(loader if read in (0, 4) else batches)
    found = list(copy)
    assert len(found) == len(expected) == (4 if read in (0, 4) else 3)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.images, theirs.images, rtol=0, atol=0)
        torch.testing.assert_close(ours.labels, theirs.labels, rtol=0, atol=0)
    labels = label_loader(tmp_path / "pool")
    next(iter(labels))
    assert len(list(pickle.loads(pickle.dumps(labels)))) == 1
