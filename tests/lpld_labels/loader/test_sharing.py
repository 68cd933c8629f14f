"""Epochs shared by processes: step by step what one process with the global batch would play."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.loader import PoolBatch, PoolLoader, pool_loader
from lpld_labels.render import ImageStore
from tests.lpld_labels.loader.conftest import Pools


def opened(pool: PoolReader, folder: Path, **options: Any) -> PoolLoader:
    return pool_loader(pool, folder, **{"batches_per_epoch": 6, "sampling": "shuffled", **options})


def shared(pool: PoolReader, folder: Path, world: int, **options: Any) -> list[PoolLoader]:
    return [opened(pool, folder, rank=rank, world_size=world, **options) for rank in range(world)]


def joined(batches: tuple[PoolBatch, ...]) -> PoolBatch:
    return PoolBatch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


@pytest.mark.parametrize(
    ("kind", "world", "batch_size"),
    [
        ("cutmix", 2, 5),
        ("cutmix", 7, 5),
        ("none", 2, 100),
        ("mixup", 3, 32),
        ("cutout", 3, 32),
        ("patches", 2, 5),
    ],
)
def test_shares_equal_one_process(pools: Pools, folder: Path, kind: str, world: int, batch_size: int) -> None:
    alone = opened(pools[kind], folder, batch_size=batch_size * world)
    ranks = shared(pools[kind], folder, world, batch_size=batch_size, num_workers=0)
    # A last step of fewer rows than processes is left out.
    steps = [step for step in alone if len(step.keys) >= world]
    assert {len(loader) for loader in ranks} == {len(steps)}
    for expected, *parts in zip(steps, *ranks, strict=True):
        rows = len(expected.keys) // world * world
        assert len({len(part.keys) for part in parts}) == 1
        assert all(torch.equal(f, e[:rows]) for f, e in zip(joined(tuple(parts)), expected, strict=True))


def test_a_process_renders_only_its_rows(pools: Pools, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    read = ImageStore.__getitem__

    def counted(store: ImageStore, index: int) -> Any:
        rendered.append(index)
        return read(store, index)

    monkeypatch.setattr(ImageStore, "__getitem__", counted)
    counts = {}
    for kind in ("none", "cutmix"):
        rendered.clear()
        (loader, _) = shared(pools[kind], folder, 2, batch_size=8, sampling="stored", batches_per_epoch=1)
        assert sum(len(batch.keys) for batch in loader) == 16
        counts[kind] = len(rendered)
    views = pools["cutmix"].read_views((0, 0))
    assert views.mix is not None
    own = np.r_[0:8, 16:24]
    assert counts == {"none": 16, "cutmix": len(np.union1d(own, views.mix.partner[own]))}
    assert counts["cutmix"] < views.rows


@pytest.mark.parametrize(("worlds", "batch_size"), [((2, 1), 5), ((2, 3), 24), ((1, 2), 24), ((3, 2), 5)])
def test_resumes_with_more_ranks(
    pools: Pools, folder: Path, worlds: tuple[int, int], batch_size: int
) -> None:
    pool, made = pools["cutmix"], 2
    rows = [row for batch in opened(pool, folder) for row in batch.keys.tolist()]
    first = shared(pool, folder, worlds[0], batch_size=batch_size)
    iterators = [iter(loader) for loader in first]
    seen = [row for _ in range(made) for it in iterators for row in next(it).keys.tolist()]
    state, *others = [loader.state_dict() for loader in first]
    assert all(other == state for other in others)
    assert state["done"] == len(seen) == made * batch_size * worlds[0]
    second = shared(pool, folder, worlds[1], batch_size=batch_size)
    for loader in second:
        loader.load_state_dict(state)
    lengths = {len(loader) for loader in second}
    steps = list(zip(*second, strict=True))
    # Enough for a trainer that counts on from the steps it made before, and for whole epochs.
    assert lengths == {max(made + len(steps), -(-len(rows) // (batch_size * worlds[1])))}
    seen += [row for step in steps for row in joined(step).keys.tolist()]
    assert seen == rows[: len(seen)]
    assert len(rows) - len(seen) < worlds[1]
    assert second[0].state_dict()["epoch"] == 1


def test_rows_too_few_for_more_processes_end_the_epoch(pools: Pools, folder: Path) -> None:
    first = opened(pools["none"], folder, batch_size=9)
    iterator = iter(first)
    total = len(first.dataset)
    for _ in range(total // 9):
        next(iterator)
    state = first.state_dict()
    left = total - state["done"]
    assert 0 < left < 9
    second, expected = (
        opened(pools["none"], folder, batch_size=9, rank=0, world_size=left + 1) for _ in range(2)
    )
    second.load_state_dict(state)
    expected.set_epoch(1)
    assert torch.equal(next(iter(second)).keys, next(iter(expected)).keys)
