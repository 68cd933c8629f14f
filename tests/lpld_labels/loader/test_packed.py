"""Loaders on pools that carry their images: to the bit what the folder gives, and no folder."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError, PoolCorruptError
from lpld_labels.loader import pool_loader
from lpld_labels.render.images import check_images, find_images
from lpld_labels.transforms.copy import merge_pools
from tests.lpld_labels.loader.loader_pools import KINDS, build, write_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def packed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Packed pools by kind; the plain ones they were made of are gone."""
    root = tmp_path_factory.mktemp("pools")
    for kind in KINDS:
        with build(root / "plain", folder, kind) as pool:
            merge_pools([pool], root / kind, images=find_images(pool, folder))
        shutil.rmtree(root / "plain")
    return {kind: root / kind for kind in KINDS}


def batches(pool: Path, images: Path | None, **options: Any) -> Iterator[Any]:
    loader = pool_loader(pool, images, batch_size=7, seed=3, **options)
    try:
        for epoch in range(2):
            loader.set_epoch(epoch)
            yield from loader
    finally:
        del loader


def assert_same(ours: Iterator[Any], theirs: Iterator[Any]) -> None:
    count = 0
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("images", "labels", "targets", "keys"):
            assert torch.equal(getattr(mine, name), getattr(other, name)), name
        count += 1
    assert count == 10


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_from_the_folder(kind: str, packed: dict[str, Path], folder: Path) -> None:
    assert_same(batches(packed[kind], None), batches(packed[kind], folder))


def test_workers_read_the_same(packed: dict[str, Path], folder: Path) -> None:
    ours = batches(packed["cutmix"], None, num_workers=2)
    assert_same(ours, batches(packed["cutmix"], folder))


def test_images_go_to_other_processes(packed: dict[str, Path]) -> None:
    with PoolReader(packed["none"]) as pool:
        images = find_images(pool)
        again = pickle.loads(pickle.dumps(images))  # our own
        assert [again.read(row) for row in (3, 29)] == [images.read(row) for row in (3, 29)]


def test_the_memory_of_decoded_images_is_the_same_file(
    packed: dict[str, Path], folder: Path, tmp_path: Path
) -> None:
    """Whoever has decoded the folder need not decode the pool: contents decide, not where they lie."""
    list(batches(packed["none"], folder, cache_directory=tmp_path))
    before = sorted(tmp_path.iterdir())
    list(batches(packed["none"], None, cache_directory=tmp_path))
    assert sorted(tmp_path.iterdir()) == before


def test_a_pool_without_images_asks_for_the_folder(folder: Path, tmp_path: Path) -> None:
    with build(tmp_path / "plain", folder) as pool, pytest.raises(InvalidArgumentError, match="--images"):
        pool_loader(pool)


def test_damaged_images_are_refused(packed: dict[str, Path], tmp_path: Path) -> None:
    pool = shutil.copytree(packed["none"], tmp_path / "pool")
    with PoolReader(pool) as reader:
        path = pool / reader.manifest.files_of("packed")[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(PoolCorruptError, match="packed/"):
        list(batches(pool, None))
    with PoolReader(pool) as reader, pytest.raises(PoolCorruptError, match="packed/"):
        check_images(find_images(reader))
