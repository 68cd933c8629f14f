"""Hard labels: fresh views of the images with their true classes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.format.records import ViewBatch
from lpld_labels.loader import PoolBatch, PoolLoader, pool_loader
from lpld_labels.render import ImageStore, apply_views, draw_views, normalise
from lpld_labels.render.images import FolderImages
from lpld_labels.transforms.settings import PruneSettings
from tests.factories import prune_pool, write_pool
from tests.lpld_labels.loader.conftest import Pools
from tests.lpld_labels.loader.loader_pools import KINDS, MEAN, STD
from tests.servers.files import FileServer

SEED = 5
"""Also the seed of the pools."""


def opened(pool: PoolReader | str, folder: Path, **options: Any) -> PoolLoader:
    return pool_loader(pool, folder, **{"seed": SEED, "labels": "hard", "batch_size": 27, **options})


def mixed_epochs(epoch: int) -> str:
    return "hard" if epoch in (1, 2) else "soft"


def drawn(pool: PoolReader, number: int, batch: int) -> ViewBatch:
    seed = int(keyed_generator(SEED, Stream.FRESH_VIEWS).random() * 2**53)
    how, size = pool.header.augmentation, pool.header.batch_size
    return draw_views(how, pool.images, seed=seed, epoch=number, batch=batch, batch_size=size)


def assert_same(found: Iterable[PoolBatch], expected: Iterable[PoolBatch]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        for ours_of, theirs_of in zip(ours, theirs, strict=True):
            assert ours_of.dtype == theirs_of.dtype
            assert torch.equal(ours_of, theirs_of)


def joined(batches: Sequence[PoolBatch]) -> list[torch.Tensor]:
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_has_fresh_views_and_true_classes(pools: Pools, folder: Path, kind: str) -> None:
    pool = pools[kind]
    how, store = pool.header.augmentation, ImageStore(FolderImages(folder, pool.images))
    loader = opened(pool, folder, num_workers=2, temperature=4.0)
    for number in range(2):
        images, labels, targets, partners, strengths, keys = joined(list(loader))
        views = [drawn(pool, number, batch) for batch in range(3)]
        pixels = torch.cat([normalise(apply_views(view, store, how), MEAN, STD) for view in views])
        assert torch.equal(images, pixels)
        rows = [(number, batch, slot) for batch, view in enumerate(views) for slot in range(view.rows)]
        assert keys.tolist() == [list(row) for row in rows]
        shown = np.concatenate([view.images for view in views])
        assert sorted(shown.tolist()) == list(range(80))
        assert targets.tolist() == pool.images.classes[shown].tolist()
        for view in views:
            assert not np.array_equal(view.crops, pool.read_views(view.key).crops)
        expected = torch.zeros(80, pool.classes)
        for row, (own, partner, strength) in enumerate(zip(targets, partners, strengths, strict=True)):
            expected[row, own] += strength
            expected[row, partner] += 1 - strength
        torch.testing.assert_close(labels, expected)
        assert bool((labels.amax(dim=1) < 1).any()) == (how.mix != "none")


@pytest.mark.parametrize("kind", ["cutmix", "mixup"])
@pytest.mark.parametrize("replay", ["cpu", "device"])
def test_ranks_together_are_one_process(pools: Pools, folder: Path, kind: str, replay: str) -> None:
    options: dict[str, Any] = {"labels": mixed_epochs, "batch_size": 10}
    whole = opened(pools[kind], folder, **options)
    ranks = [
        opened(pools[kind], folder, **options | {"batch_size": 5}, replay=replay, rank=rank, world_size=2)
        for rank in range(2)
    ]
    for _ in range(4):
        steps = zip(*ranks, strict=True)
        assert_same([PoolBatch(*joined(step)) for step in steps], whole)


@pytest.mark.parametrize("epoch", range(4))
def test_a_run_resumes_in_every_phase(pools: Pools, folder: Path, epoch: int) -> None:
    options: dict[str, Any] = {"labels": mixed_epochs, "batch_size": 27}
    first, second = (opened(pools["cutmix"], folder, **options, num_workers=n) for n in (0, 1))
    first.set_epoch(epoch)
    running = iter(first)
    next(running)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert_same(second, running)
    assert_same(second, first)  # the next epoch


def test_hard_epochs_of_complete_batches_are_as_long_as_soft_ones(
    pools: Pools, folder: Path, tmp_path: Path
) -> None:
    equal = opened(pools["cutmix"], folder, equal_epochs=True, batch_size=None, batches_per_epoch=3)
    seen = [[(len(batch.images), *batch.keys[0, :2].tolist()) for batch in equal] for _ in range(2)]
    # Passes of two complete label batches each.
    assert seen == [[(32, 0, 0), (32, 0, 1), (32, 1, 0)], [(32, 1, 1), (32, 2, 0), (32, 2, 1)]]
    prune_pool(pools["cutmix"], tmp_path / "pruned", PruneSettings(ratio=8))
    with PoolReader(tmp_path / "pruned") as pool:
        assert pool.index.rows.tolist() == [32]
        soft, hard = (opened(pool, folder, labels=labels, batches_per_epoch=2) for labels in ("soft", "hard"))
        assert len(soft) == len(hard) == len(list(hard)) == 3


def test_a_remote_pool_is_read_for_soft_epochs_only(
    pools: Pools, folder: Path, tmp_path: Path, http: FileServer
) -> None:
    place = Path(str(pools["cutmix"].location))
    cache = {"cache_directory": tmp_path / "cache", "labels": mixed_epochs, "num_workers": 1}
    assert_same(
        [
            batch
            for loader in [opened(http.add(place, "pool"), folder, **cache)]
            for _ in range(5)
            for batch in loader
        ],
        [
            batch
            for loader in [opened(pools["cutmix"], folder, labels=mixed_epochs)]
            for _ in range(5)
            for batch in loader
        ],
    )
    always = opened(http.add(place, "hard"), folder, cache_directory=tmp_path / "other")
    assert_same(always, opened(pools["cutmix"], folder))


def test_what_cannot_have_hard_labels_is_refused(pools: Pools, folder: Path, tmp_path: Path) -> None:
    pool = pools["cutmix"]
    with pytest.raises(InvalidArgumentError, match=r"unknown labels .*soft, hard"):
        opened(pool, folder, labels="medium")
    later = opened(pool, folder, labels=lambda epoch: "Hard" if epoch else "soft")
    later.set_epoch(1)
    with pytest.raises(InvalidArgumentError, match=r"unknown labels .*Hard"):
        list(later)
    unknown = replace(pool.header, augmentation=replace(pool.header.augmentation, crop_scale=None))
    write_pool(tmp_path / "imported", list(pool), header=unknown, images=pool.images).close()
    with PoolReader(tmp_path / "imported") as imported:
        with pytest.raises(InvalidArgumentError, match="does not record how its views were drawn"):
            opened(imported, folder)
        opened(imported, folder, labels="soft")
    fewer = replace(pool.images, classes=np.minimum(pool.images.classes, 4))
    write_pool(tmp_path / "fewer", list(pool), header=pool.header, images=fewer).close()
    with PoolReader(tmp_path / "fewer") as five, pytest.raises(InvalidArgumentError, match="6 class folders"):
        opened(five, folder)
