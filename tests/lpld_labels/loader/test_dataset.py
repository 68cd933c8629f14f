"""`PoolDataset`: items are the loader's rows, for every index, sampler and number of workers."""

import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Subset, WeightedRandomSampler

from lpld_labels import PoolReader
from lpld_labels.codecs import Codec
from lpld_labels.errors import InvalidArgumentError, PoolCorruptError
from lpld_labels.loader import PoolBatch, PoolDataset, pool_loader
from lpld_labels.loader.workers import LabelBatches, Task
from lpld_labels.render.images import find_images
from lpld_labels.transforms.copy import merge_pools
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.settings import EncodeSettings
from tests.lpld_labels.loader.conftest import Pools
from tests.lpld_labels.loader.loader_pools import KINDS, build


def loader_rows(pool: PoolReader, folder: Path | None, **options: Any) -> list[PoolBatch]:
    """Every view of the pool, once, in stored order, as the loader yields it."""
    loader = pool_loader(pool, folder, sampling="stored", batches_per_epoch=len(pool), **options)
    return [PoolBatch(*row) for batch in loader for row in zip(*batch, strict=True)]


def items(dataset: PoolDataset) -> list[PoolBatch]:
    return [dataset[number] for number in range(len(dataset))]


def assert_same(found: Sequence[PoolBatch], expected: Sequence[PoolBatch]) -> None:
    assert len(found) == len(expected)
    for item, row in zip(found, expected, strict=True):
        for name, ours, theirs in zip(PoolBatch._fields, item, row, strict=True):
            assert ours.dtype == theirs.dtype, name
            assert torch.equal(ours, theirs), (name, row.keys)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each label batch was read and decoded."""
    counted: Counter[int] = Counter()
    prepare = LabelBatches.prepare

    def counting(self: LabelBatches, task: Task) -> Any:
        counted[task.place] += 1
        return prepare(self, task)

    monkeypatch.setattr(LabelBatches, "prepare", counting)
    return counted


@pytest.mark.parametrize("options", [{}, {"temperature": 3.0}, {"normalise": False}])
@pytest.mark.parametrize("kind", KINDS)
def test_every_item_is_the_loaders_row(
    pools: Pools, folder: Path, kind: str, options: dict[str, Any]
) -> None:
    pool = pools[kind]
    expected = loader_rows(pool, folder, **options)
    dataset = PoolDataset(pool, folder, **options)
    assert len(dataset) == len(expected) == int(pool.index.rows.sum())
    assert_same(items(dataset), expected)
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    assert_same(dataset.__getitems__(order), [expected[row] for row in order])


@pytest.mark.parametrize("how", ["klt", "drawn", "packed"])
def test_other_pools(pools: Pools, folder: Path, tmp_path: Path, how: str) -> None:
    stored = pools["cutmix"]
    if how == "packed":
        merge_pools([stored], tmp_path / how, images=find_images(stored, folder))
    elif how == "klt":
        encode_pool(stored, tmp_path / how, EncodeSettings(codec="klt", fidelity=0.5))
    else:
        encode_pool(stored, tmp_path / how, EncodeSettings(views="drawn"))
    pool, images = PoolReader(tmp_path / how), None if how == "packed" else folder
    assert_same(items(PoolDataset(pool, images)), loader_rows(pool, images))


@pytest.mark.parametrize(("num_workers", "context"), [(0, None), (2, "fork"), (1, "spawn")])
def test_dataloader_samplers_and_subsets(
    pools: Pools, folder: Path, num_workers: int, context: str | None
) -> None:
    pool = pools["cutmix"]
    expected = loader_rows(pool, folder)
    dataset = PoolDataset(pool, folder)
    assert dataset[0].images.shape == (3, 16, 16)  # so that workers inherit a used dataset
    generator = torch.Generator().manual_seed(1)
    sampler = WeightedRandomSampler(list(range(40)), 30, generator=generator)
    chosen = Subset(dataset, range(5, 205, 5))
    loader = DataLoader(
        chosen,
        batch_sampler=BatchSampler(sampler, 7, drop_last=False),
        num_workers=num_workers,
        multiprocessing_context=context,
    )
    batches = list(loader)
    assert {type(batch) for batch in batches} == {PoolBatch}
    assert [len(batch.images) for batch in batches] == [7, 7, 7, 7, 2]
    found = [PoolBatch(*row) for batch in batches for row in zip(*batch, strict=True)]
    by_key = {tuple(row.keys.tolist()): row for row in expected}
    assert_same(found, [by_key[tuple(row.keys.tolist())] for row in found])
    allowed = {tuple(expected[row].keys.tolist()) for row in range(5, 205, 5)}
    assert {tuple(row.keys.tolist()) for row in found} <= allowed


def test_pickles_go_without_what_was_decoded(pools: Pools, folder: Path) -> None:
    dataset = PoolDataset(pools["mixup"], folder, epochs=[1], classes=[2])
    before = len(pickle.dumps(dataset))
    expected = items(dataset)
    again = pickle.dumps(dataset)
    assert len(again) == before
    assert_same(items(pickle.loads(again)), expected)


def test_epochs_and_classes(pools: Pools, folder: Path) -> None:
    pool = pools["cutmix"]
    rows = loader_rows(pool, folder)
    for epochs, classes in (([1, 3], None), (None, {0, 5}), (range(2), [4])):
        dataset = PoolDataset(pool, folder, epochs=epochs, classes=classes)
        wanted = [
            row
            for row in rows
            if (epochs is None or int(row.keys[0]) in epochs)
            and (classes is None or int(row.targets) in classes)
        ]
        assert wanted
        assert_same(items(dataset), wanted)
    nothing: list[dict[str, Any]] = [{"epochs": [4]}, {"classes": [6]}, {"epochs": []}]
    for options in nothing:
        with pytest.raises(InvalidArgumentError, match="no views of these epochs and classes"):
            PoolDataset(pool, folder, **options)
    with pytest.raises(InvalidArgumentError, match="temperature is out of range"):
        PoolDataset(pool, folder, temperature=0)


def test_numbers_count_from_either_end(pools: Pools, folder: Path) -> None:
    dataset = PoolDataset(pools["none"], folder)
    last = len(dataset) - 1
    assert_same([dataset[-1], dataset[np.int64(3)]], [dataset[last], dataset[3]])
    for wrong in (len(dataset), -len(dataset) - 1):
        with pytest.raises(IndexError, match="out of range"):
            dataset[wrong]


def test_a_label_batch_is_decoded_once_for_neighbours(
    pools: Pools, folder: Path, read: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = PoolDataset(pools["cutmix"], folder)
    items(dataset)
    assert set(read.values()) == {1}
    read.clear()
    monkeypatch.setattr("lpld_labels.loader.dataset.DECODED_BYTES", 1)
    small = PoolDataset(pools["cutmix"], folder)
    small.__getitems__([0, 40, 1, 41, 31, 2])  # batches 0 and 1 in turn, one request
    assert read == {0: 1, 1: 1}
    for number in (42, 43, 44, 2):
        small[number]
    assert read == {0: 2, 1: 1}, "the newest label batch is kept, however small the cache"


def test_damaged_labels_are_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = build(tmp_path / "pool", folder, codec="topk:3", epochs=1, batch_size=32)

    def damaged(self: Codec, *args: Any, **options: Any) -> Any:
        raise PoolCorruptError("damaged on purpose")

    monkeypatch.setattr(type(pool.codec), "split", damaged)
    with pytest.raises(PoolCorruptError, match="epoch 0 batch 0"):
        PoolDataset(pool, folder)[0]


def test_a_loaders_own_dataset_says_what_to_use(pools: Pools, folder: Path) -> None:
    loader = pool_loader(pools["none"], folder, batch_size=8)
    message = r"no items by number.*lpld_labels\.loader\.PoolDataset"
    with pytest.raises(InvalidArgumentError, match=message):
        loader.dataset[0]
    with pytest.raises(InvalidArgumentError, match=message):
        Subset(loader.dataset, [1])[0]
    assert len(next(iter(loader)).images) == 8
