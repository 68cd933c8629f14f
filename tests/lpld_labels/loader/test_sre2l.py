"""The loader for SRe2L and LPLD scripts: same images and labels, mixing left to the script."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lpld_labels.loader import pool_loader, sre2l_loader
from lpld_labels.loader.sre2l import Sre2lDataset
from tests.lpld_labels.loader.loader_pools import KINDS, build, write_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), 40)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_tuples_mean_what_the_scripts_expect(
    folder: Path, tmp_path: Path, kind: str, num_workers: int
) -> None:
    pool = build(tmp_path / "pool", folder, kind, batch_size=16)
    loader = sre2l_loader(pool, folder, policy="stored", num_workers=num_workers)
    # In stored order only the last label batch of an epoch is short, so both cut at the same rows.
    mixed = pool_loader(pool, folder, policy="stored")
    assert len(loader) == len(mixed) == 3
    for scripted, expected in zip(loader, mixed, strict=True):
        (images, target, flip, coords, index), mix_index, mix_lam, mix_bbox, soft_label = scripted
        if mix_index is not None and mix_lam is not None:
            if mix_bbox is None:
                images = mix_lam * images + (1 - mix_lam) * images[mix_index]
            else:
                top, left, bottom, right = mix_bbox
                images = images.clone()
                images[:, :, top:bottom, left:right] = images[mix_index, :, top:bottom, left:right]
        if kind == "mixup":
            torch.testing.assert_close(images, expected.images, atol=1e-5, rtol=1e-5)
        else:
            assert torch.equal(images, expected.images)
        assert torch.equal(target, expected.targets)
        assert torch.equal(soft_label, expected.labels)
        views = pool.read_views(tuple(expected.keys[0, :2].tolist()))
        np.testing.assert_array_equal(index.numpy(), views.images)
        np.testing.assert_array_equal(flip.numpy(), views.flips)
        sizes = np.stack([pool.images.heights, pool.images.widths] * 2, axis=1)[views.images]
        np.testing.assert_array_equal(np.rint(coords.numpy() * sizes), views.crops)


def test_scripts_may_set_the_epoch_on_the_dataset(folder: Path, tmp_path: Path) -> None:
    pool = build(tmp_path / "pool", folder, batch_size=16)
    loader = sre2l_loader(pool, folder)
    assert isinstance(loader.dataset, Sre2lDataset)
    assert loader.dataset.batch_num_per_epoch == 3
    epochs = [[batch[0][4].tolist() for batch in loader] for _ in range(3)]
    loader.dataset.set_epoch(1)
    assert [batch[0][4].tolist() for batch in loader] == epochs[1]
