"""A pool whose views are drawn trains like its stored twin: the same batches in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.loader import PoolBatch, pool_loader
from lpld_labels.loader.schedule import SAMPLINGS
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.settings import EncodeSettings
from tests.lpld_labels.loader.loader_pools import KINDS, build, write_images


def _twins(folder: Path, kind: str = "cutmix") -> tuple[PoolReader, PoolReader, Path]:
    images = write_images(folder / "images")
    stored = build(folder / "stored", images, kind)
    encode_pool(stored, folder / "drawn", EncodeSettings(views="drawn"))
    return stored, PoolReader(folder / "drawn"), images


def _epoch(pool: PoolReader, images: Path, **options: Any) -> list[PoolBatch]:
    loader = pool_loader(pool, images, batch_size=5, seed=3, **options)
    return [PoolBatch(*(part.clone() for part in batch)) for _ in range(2) for batch in loader]


def _same(first: list[PoolBatch], second: list[PoolBatch]) -> None:
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(part, twin) for part, twin in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_batches_are_the_same(tmp_path: Path, kind: str) -> None:
    stored, drawn, images = _twins(tmp_path, kind)
    assert drawn.manifest.views == "drawn"
    _same(_epoch(stored, images, num_workers=0), _epoch(drawn, images, num_workers=0))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_sampling_plays_the_same_order(tmp_path: Path, sampling: str) -> None:
    stored, drawn, images = _twins(tmp_path)
    _same(
        _epoch(stored, images, num_workers=0, sampling=sampling),
        _epoch(drawn, images, num_workers=0, sampling=sampling),
    )


def test_workers_draw_too(tmp_path: Path) -> None:
    stored, drawn, images = _twins(tmp_path)
    _same(_epoch(stored, images, num_workers=0), _epoch(drawn, images, num_workers=2))
