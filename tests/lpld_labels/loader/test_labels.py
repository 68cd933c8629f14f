"""Labels from loaders: decoded to the same bits as by the reader, or handed over whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.loader import label_loader, pool_loader
from lpld_labels.loader.schedule import Schedule
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.settings import EncodeSettings
from tests.lpld_labels.loader.loader_pools import build, write_images

IMAGES, BATCH = 80, 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), IMAGES)


@pytest.mark.parametrize("codec", ["f16", "f16:plain", "f32", "int8", "int6", "int4", "topk:3"])
def test_labels_decode_to_the_same_bits_as_the_reader(folder: Path, tmp_path: Path, codec: str) -> None:
    pool = build(tmp_path / "pool", folder, codec=codec, epochs=1, batch_size=BATCH)
    for batch in label_loader(pool, sampling="stored"):
        expected = pool.read_labels(batch.key, dtype=np.float32)
        np.testing.assert_array_equal(batch.labels().numpy(), expected)


@pytest.mark.parametrize("label_kind", ["logits", "probabilities"])
def test_transform_coded_labels_are_finished_by_one_product(
    folder: Path, tmp_path: Path, label_kind: str
) -> None:
    plain = build(tmp_path / "plain", folder, batch_size=BATCH, label_kind=label_kind)
    encode_pool(plain, tmp_path / "klt", EncodeSettings(codec="klt", fidelity=0.5))
    pool = PoolReader(tmp_path / "klt")
    for batch in label_loader(pool, sampling="stored", batches_per_epoch=len(pool)):
        assert batch.parts[0].shape[0] == batch.views.rows
        expected = torch.from_numpy(pool.read_labels(batch.key, dtype=np.float32).copy())
        torch.testing.assert_close(batch.labels(), expected, atol=1e-4, rtol=1e-4)
    rows = next(iter(pool_loader(pool, folder, batch_size=5, sampling="stored")))
    stored = torch.from_numpy(pool.read_labels((0, 0), dtype=np.float32)[:5].copy())
    torch.testing.assert_close(rows.labels, stored, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_label_batches_come_whole_and_undecoded(folder: Path, tmp_path: Path, num_workers: int) -> None:
    pool = build(tmp_path / "pool", folder, "cutmix", epochs=4, batch_size=BATCH)
    shares = []
    for rank in range(2):
        loader = label_loader(
            pool, seed=2, batches_per_epoch=7, rank=rank, world_size=2, num_workers=num_workers
        )
        assert len(loader) == 3
        shares.append([batch.key for batch in loader])
    schedule = Schedule.of(pool, sampling="shuffled", seed=2, batches_per_epoch=7)
    expected = [pool.index.key(place) for place in schedule.places(0).tolist()]
    # Step s of process r is label batch 2 s + r; the seventh cannot be shared out.
    assert [key for step in zip(*shares, strict=True) for key in step] == expected[:6]
    loader = label_loader(pool, seed=2, batches_per_epoch=7, num_workers=num_workers)
    batch = next(iter(loader))
    assert (batch.targets == pool.images.classes[batch.views.images]).all()
    state = loader.state_dict()
    resumed = label_loader(pool, seed=2, batches_per_epoch=7)
    resumed.load_state_dict(state)
    assert [b.key for b in resumed] == expected[1:]
