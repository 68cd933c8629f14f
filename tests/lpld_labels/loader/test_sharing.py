"""Epochs shared by processes: step by step what one process with the global batch would play."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader import PoolBatch, PoolLoader, pool_loader
from lpld_labels.loader.schedule import Position, Processes, Schedule, current_processes
from lpld_labels.render import ImageStore, apply_views
from lpld_labels.render.apply import take_views
from lpld_labels.render.images import FolderImages
from tests.lpld_labels.loader.loader_pools import KINDS, build, write_images

PER_EPOCH = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), 80)


@pytest.fixture(scope="module")
def pools(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, PoolReader]:
    root = tmp_path_factory.mktemp("pools")
    return {kind: build(root / kind, folder, kind, epochs=3, batch_size=32) for kind in KINDS}


def opened(pool: PoolReader, folder: Path, **options: Any) -> PoolLoader:
    return pool_loader(pool, folder, **{"batches_per_epoch": PER_EPOCH, "sampling": "shuffled", **options})


def shared(
    pool: PoolReader, folder: Path, world: int, batch_size: int | None, **options: Any
) -> list[PoolLoader]:
    return [
        opened(pool, folder, batch_size=batch_size, rank=rank, world_size=world, **options)
        for rank in range(world)
    ]


def joined(batches: tuple[PoolBatch, ...]) -> PoolBatch:
    return PoolBatch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Fixed(Schedule):
    """A schedule whose epochs are all the same label batches."""

    order: list[int]

    def places(self, epoch: int) -> Any:
        return np.array(self.order)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    world=st.integers(1, 5),
    batch=st.integers(1, 12),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_processes_together_are_one_process_with_the_global_batch(
    sizes: list[int], world: int, batch: int, drop_last: bool, data: st.DataObject
) -> None:
    # The same label batch may come twice in a row.
    places = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=12))
    rows = [(place, row) for place in places for row in range(sizes[place])]
    epoch = Fixed(
        sampling="stored",
        seed=0,
        epochs=np.zeros(len(sizes), np.int32),
        rows=np.array(sizes),
        batches_per_epoch=1,
        batch=batch,
        drop_last=drop_last,
        order=places,
    )
    total = len(rows)
    done = data.draw(st.integers(0, total))
    position = Position(4, done, 3)
    if total < world:
        with pytest.raises(InvalidArgumentError, match="too few rows"):
            list(epoch.steps(position, Processes(0, world)))
        return
    played = []
    for rank in range(world):
        steps = list(epoch.steps(position, Processes(rank, world)))
        runs = list(epoch.runs(position, Processes(rank, world)))
        own = [(place, row) for place, parts in runs for start, stop in parts for row in range(start, stop)]
        assert len(own) == sum(step.units for step in steps)
        ends_of = np.cumsum([step.units for step in steps]).tolist()
        played.append([own[end - step.units : end] for step, end in zip(steps, ends_of, strict=True)])
        assert [step.before.done for step in steps[1:]] == [step.after.done for step in steps[:-1]]
        assert [step.before.steps for step in steps] == list(range(3, 3 + len(steps)))
        assert all(step.is_last == (step is steps[-1]) for step in steps)
    assert len({len(steps) for steps in played}) == 1
    together = [[row for part in step for row in part] for step in zip(*played, strict=True)]
    alone = [rows[first : first + batch * world] for first in range(done, total, batch * world)]
    full = [step for step in alone if len(step) == batch * world]
    assert together[: len(full)] == full
    for last in alone[len(full) :]:
        left = last[: len(last) // world * world]
        assert together[len(full) :] == ([left] if left and not drop_last else [])


@pytest.mark.parametrize(("world", "batch_size"), [(2, 5), (2, 100), (3, 32), (7, 5)])
@pytest.mark.parametrize("kind", KINDS)
def test_their_batches_are_bit_for_bit_those_of_one_process(
    pools: dict[str, PoolReader], folder: Path, kind: str, world: int, batch_size: int
) -> None:
    alone = opened(pools[kind], folder, batch_size=batch_size * world)
    ranks = shared(pools[kind], folder, world, batch_size, num_workers=0)
    lengths = {len(loader) for loader in ranks}
    assert len(lengths) == 1
    # A last step of fewer rows than processes is left out.
    steps = [step for step in alone if len(step.keys) >= world]
    assert lengths == {len(steps)}
    for expected, *parts in zip(steps, *ranks, strict=True):
        found = joined(tuple(parts))
        rows = len(expected.keys) // world * world
        assert len({len(part.keys) for part in parts}) == 1
        assert all(torch.equal(f, e[:rows]) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_some_rows_of_a_label_batch_look_as_in_the_whole(
    pools: dict[str, PoolReader], folder: Path, kind: str
) -> None:
    pool = pools[kind]
    augmentation = pool.header.augmentation
    store = ImageStore(FolderImages(folder, pool.images))
    for key in pool.keys[:3]:
        views = pool.read_views(key)
        whole = apply_views(views, store, augmentation)
        for slots in (np.array([4]), np.arange(3, 11), np.arange(0, views.rows, 3)):
            some = apply_views(take_views(views, slots), store, augmentation)
            assert torch.equal(some[: len(slots)], whole[slots])


def test_a_process_renders_its_rows_and_their_partners_only(
    pools: dict[str, PoolReader], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[int] = []
    read = ImageStore.__getitem__

    def counted(store: ImageStore, index: int) -> Any:
        rendered.append(index)
        return read(store, index)

    monkeypatch.setattr(ImageStore, "__getitem__", counted)
    counts = {}
    for kind in ("none", "cutmix"):
        rendered.clear()
        (loader, _) = shared(pools[kind], folder, 2, 8, sampling="stored", batches_per_epoch=1)
        taken = sum(len(batch.keys) for batch in loader)
        # The stream is endless: the next label batch is prepared before the epoch is over at most.
        assert taken == 16
        counts[kind] = len(rendered)
    views = pools["cutmix"].read_views((0, 0))
    assert views.mix is not None
    own = np.r_[0:8, 16:24]
    assert counts == {"none": 16, "cutmix": len(np.union1d(own, views.mix.partner[own]))}
    assert counts["cutmix"] < views.rows


@pytest.mark.parametrize("worlds", [(2, 1), (2, 3), (1, 2), (3, 2)])
@pytest.mark.parametrize("batch_size", [5, 24])
def test_a_run_resumes_with_another_number_of_processes(
    pools: dict[str, PoolReader], folder: Path, worlds: tuple[int, int], batch_size: int
) -> None:
    pool, made = pools["cutmix"], 2
    rows = [row for batch in opened(pool, folder) for row in batch.keys.tolist()]
    first = shared(pool, folder, worlds[0], batch_size)
    iterators = [iter(loader) for loader in first]
    seen = [row for _ in range(made) for it in iterators for row in next(it).keys.tolist()]
    states = [loader.state_dict() for loader in first]
    assert all(state == states[0] for state in states)
    assert states[0]["done"] == len(seen) == made * batch_size * worlds[0]
    second = shared(pool, folder, worlds[1], batch_size)
    for loader in second:
        loader.load_state_dict(states[0])
    lengths = {len(loader) for loader in second}
    steps = list(zip(*second, strict=True))
    # Enough for a trainer that counts on from the steps it made before, and for whole epochs.
    assert lengths == {max(made + len(steps), -(-len(rows) // (batch_size * worlds[1])))}
    seen += [row for step in steps for row in joined(step).keys.tolist()]
    assert seen == rows[: len(seen)]
    assert len(rows) - len(seen) < worlds[1]
    assert second[0].state_dict()["epoch"] == 1


def test_rows_too_few_for_more_processes_end_the_epoch(pools: dict[str, PoolReader], folder: Path) -> None:
    first = opened(pools["none"], folder, batch_size=9)
    iterator = iter(first)
    total = len(first.dataset)
    for _ in range(total // 9):
        next(iterator)
    state = first.state_dict()
    left = total - state["done"]
    assert 0 < left < 9
    second = opened(pools["none"], folder, batch_size=9, rank=0, world_size=left + 1)
    second.load_state_dict(state)
    expected = opened(pools["none"], folder, batch_size=9, rank=0, world_size=left + 1)
    expected.set_epoch(1)
    assert torch.equal(next(iter(second)).keys, next(iter(expected)).keys)


def test_rows_of_an_epoch_are_disjoint_unless_drawn_with_replacement(
    pools: dict[str, PoolReader], folder: Path
) -> None:
    """What README says: a row is taken once each time the epoch has it, by one process."""
    repeats = {}
    for sampling in ("batches", "shuffled"):
        ranks = shared(pools["none"], folder, 2, 16, sampling=sampling, batches_per_epoch=9)
        rows = [tuple(row) for loader in ranks for batch in loader for row in batch.keys.tolist()]
        alone = opened(pools["none"], folder, sampling=sampling, batches_per_epoch=9)
        once = sorted(tuple(row) for batch in alone for row in batch.keys.tolist())
        assert sorted(rows) == once
        repeats[sampling] = len(rows) - len(set(rows))
    assert repeats["batches"] > 0
    assert repeats["shuffled"] == 0


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "NODE_RANK": "0"},
        {"LOCAL_RANK": "1"},
        {"RANK": "3"},
    ],
)
def test_a_launcher_that_says_otherwise_is_not_overheard(
    pools: dict[str, PoolReader], folder: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    loader = opened(pools["none"], folder, batch_size=8)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    message = r"launcher's environment.*disagree.*init_process_group.*or give rank and world_size"
    with pytest.raises(InvalidArgumentError, match=message):
        next(iter(loader))
    with pytest.raises(InvalidArgumentError, match=message):
        len(loader)
    told = opened(pools["none"], folder, batch_size=8, rank=0, world_size=1)
    assert len(next(iter(told)).keys) == 8


@pytest.mark.parametrize("environment", [{}, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}])
def test_a_launcher_of_one_process_is_fine(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert current_processes() == Processes(0, 1)
