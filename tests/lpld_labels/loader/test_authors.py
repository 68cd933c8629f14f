"""The loaders for the authors' scripts: what is in their tuples, what they play, what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as vision

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader import (
    fkd_loader,
    gvbsm_loader,
    lpld_loader,
    lpqld_loader,
    pool_loader,
    sre2l_loader,
)
from lpld_labels.loader.authors.programme import Process, Programme
from lpld_labels.transforms.codec_request import CodecRequest
from lpld_labels.transforms.encode import encode_pool
from tests.lpld_labels.loader.loader_pools import KINDS, MEAN, STD, build, write_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), 40)


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> PoolReader:
    """Four epochs of batches of 16, 16 and 8 rows."""
    return build(tmp_path_factory.mktemp("pools") / "whole", folder, batch_size=16)


def keys(pool: PoolReader, images: torch.Tensor) -> tuple[int, int]:
    """Return the label batch that shows these images in this order."""
    found = [key for key in pool.keys if pool.read_views(key).images.tolist() == images.tolist()]
    assert len(found) == 1
    epoch, batch = found[0]
    return epoch, batch


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_tuples_mean_what_the_scripts_expect(
    folder: Path, tmp_path: Path, kind: str, num_workers: int
) -> None:
    pool = build(tmp_path / "pool", folder, kind, batch_size=16)
    mix_type = KINDS[kind].get("mix")
    loader = lpld_loader(pool, folder, batch_size=16, mix_type=mix_type, num_workers=num_workers)
    mixed = pool_loader(pool, folder, policy="stored")
    assert len(loader) == len(mixed) == 3
    for scripted, expected in zip(loader, mixed, strict=True):
        seen, mix_index, mix_lam, mix_bbox, soft_label = scripted
        images, target, _, _, index = seen
        assert images.is_contiguous()
        if mix_index is not None and mix_lam is not None:
            if mix_bbox is None:
                images = mix_lam * images + (1 - mix_lam) * images[mix_index]
            else:
                top, left, bottom, right = mix_bbox
                images[:, :, top:bottom, left:right] = images[mix_index, :, top:bottom, left:right]
        torch.testing.assert_close(images, expected.images, atol=1e-5, rtol=1e-5)
        assert torch.equal(target, expected.targets)
        assert torch.equal(soft_label, expected.labels)
        views = pool.read_views(tuple(expected.keys[0, :2].tolist()))
        np.testing.assert_array_equal(index.numpy(), views.images)
        sizes = np.stack([pool.images.heights, pool.images.widths] * 2, axis=1)[views.images]
        coords = seen[3] if views.cutout is None else seen[2]
        np.testing.assert_array_equal(np.rint(coords.numpy() * sizes), views.crops)
        if views.cutout is None:
            np.testing.assert_array_equal(seen[2].numpy(), views.flips)
        else:
            centre, side = seen[3][:, :2].numpy() * 16, seen[3][:, 2:4].numpy() * 16
            np.testing.assert_allclose(centre - side / 2, views.cutout.boxes[:, :2], atol=1e-5)
            np.testing.assert_allclose(centre + side / 2, views.cutout.boxes[:, 2:], atol=1e-5)
            np.testing.assert_array_equal(seen[3][:, 4:].numpy(), views.cutout.fill)


def test_images_are_torchvisions_bit_by_bit(folder: Path, tmp_path: Path) -> None:
    pool = build(tmp_path / "pool", folder, "none", batch_size=16)
    loader = sre2l_loader(pool, folder, batch_size=16, mix_type=None)
    for batch, pixels in zip(
        loader, pool_loader(pool, folder, policy="stored", normalised=False), strict=True
    ):
        for image, shown in zip(batch[0][0], pixels.images, strict=True):
            picture = Image.fromarray(shown.permute(1, 2, 0).numpy())
            assert torch.equal(image, vision.normalize(vision.to_tensor(picture), list(MEAN), list(STD)))


def test_an_epoch_is_the_stored_one_and_ends_with_its_short_batch(folder: Path, whole: PoolReader) -> None:
    loader = lpld_loader(whole, folder, batch_size=16, mix_type="cutmix")
    for epoch in (2, 0, 3):
        loader.dataset.set_epoch(epoch)
        assert [keys(whole, batch[0][4]) for batch in loader] == [(epoch, b) for b in range(3)]
    assert [keys(whole, batch[0][4]) for batch in loader] == [(0, 0), (0, 1), (0, 2)]


def test_batches_are_named_by_number(folder: Path, whole: PoolReader) -> None:
    loader = lpld_loader(whole, folder, batch_size=16, mix_type="cutmix")
    assert loader.dataset.batch_num_per_epoch == 3
    loader.sampler.set_batch(7)
    loader.dataset.set_batch(7)
    assert len(loader) == 1
    assert [keys(whole, batch[0][4]) for batch in loader] == [(2, 1)]
    # A short batch in the middle gives way to the complete one before it; at the end it stays.
    loader.sampler.set_batch_list([8, 0, 2, 11])
    loader.dataset.set_batch_list([8, 0, 2, 11], loader.sampler.get_batch_list_img_mapping())
    assert len(loader) == 4
    played = [batch[0][4] for batch in loader]
    assert [keys(whole, images) for images in played] == [(2, 1), (0, 0), (0, 1), (3, 2)]
    assert [len(images) for images in played] == [16, 16, 16, 8]
    with pytest.raises(InvalidArgumentError, match=r"does not have.*0 to 11.*12.*--prune_ratio"):
        loader.sampler.set_batch_list([3, 12])


@pytest.mark.parametrize("policy", ["batches", "shuffled", "stored"])
def test_drawn_epochs_have_complete_batches_only(folder: Path, whole: PoolReader, policy: str) -> None:
    loader = sre2l_loader(whole, folder, batch_size=16, mix_type="cutmix", policy=policy)
    rows = [len(batch[0][1]) for _ in range(6) for batch in loader]
    assert rows == [16] * 12


def test_passes_take_one_number_from_torchs_generator_as_a_stock_loader_does(
    folder: Path, whole: PoolReader
) -> None:
    loader = lpld_loader(whole, folder, batch_size=16, mix_type="cutmix")
    stock = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(3)))
    drawn = []
    for source in (loader, stock):
        torch.manual_seed(5)
        numbers = []
        for _ in range(3):
            for _batch in source:
                pass
            numbers.append(torch.randint(0, 10**6, (1,)).item())
        drawn.append(numbers)
    assert drawn[0] == drawn[1]


def test_processes_share_a_pass(folder: Path, whole: PoolReader) -> None:
    played = []
    for rank in range(2):
        loader = lpld_loader(whole, folder, batch_size=16, mix_type="cutmix", rank=rank, world_size=2)
        loader.sampler.set_batch_list([0, 1, 3, 4, 6])
        assert len(loader) == 2
        played.append([keys(whole, batch[0][4]) for batch in loader])
    assert played == [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]
    with pytest.raises(InvalidArgumentError, match="rank and world_size together"):
        Process(rank=1)


def test_sre2l_gives_four_items(folder: Path, whole: PoolReader) -> None:
    batch = next(iter(sre2l_loader(whole, folder, batch_size=16, mix_type="cutmix")))
    assert len(batch) == 5
    assert [list(part.shape) for part in batch[0]] == [[16, 3, 16, 16], [16], [16], [16, 4]]


def test_gvbsm_says_the_mix_in_every_row(folder: Path, whole: PoolReader, tmp_path: Path) -> None:
    sre2l = sre2l_loader(whole, folder, batch_size=16, mix_type="cutmix")
    for ours, theirs in zip(
        gvbsm_loader(whole, folder, batch_size=16, mix_type="cutmix"), sre2l, strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(ours[:4], theirs[0], strict=True))
        assert torch.equal(ours[4], theirs[1])
        assert ours[5].dtype == torch.float64
        assert set(ours[5].tolist()) == {theirs[2]}
        assert [set(side.tolist()) for side in ours[6]] == [{side} for side in theirs[3]]
        assert torch.equal(ours[7], theirs[4])
    plain = build(tmp_path / "plain", folder, "none", batch_size=16)
    *_, partner, strength, box, _ = next(iter(gvbsm_loader(plain, folder, batch_size=16, mix_type=None)))
    assert partner.tolist() == list(range(16))
    assert set(strength.tolist()) == {1.0}
    assert not torch.stack(box).any()
    with pytest.raises(InvalidArgumentError, match="MixUp"):
        gvbsm_loader(
            build(tmp_path / "mixup", folder, "mixup", batch_size=16),
            folder,
            batch_size=16,
            mix_type="mixup",
        )


def test_lpqld_gives_the_largest_labels_of_any_pool(folder: Path, whole: PoolReader, tmp_path: Path) -> None:
    build(tmp_path / "topk", folder, batch_size=16, codec="topk:3")
    options: dict[str, Any] = {"batch_size": 16, "mix_type": "cutmix"}
    dense = lpqld_loader(whole, folder, **options)
    assert dense.dataset.total_num_batches == 8
    assert dense.dataset.batch_num_per_epoch == 2
    kept = [
        lpqld_loader(pool, folder, label_quantization=f"MR-{k}", **options)
        for pool, k in ((whole, 2), (tmp_path / "topk", 2), (tmp_path / "topk", 3))
    ]
    for loader in (dense, *kept):
        loader.sampler.set_batch_list([3, 0])
    for whole_labels, *batches in zip(dense, *kept, strict=True):
        assert keys(whole, whole_labels[0][4]) in {(1, 1), (0, 0)}
        for batch, k in zip(batches, (2, 2, 3), strict=True):
            largest = torch.topk(whole_labels[4], k, dim=1)
            assert torch.equal(batch[4], largest.values)
            assert torch.equal(batch[5], largest.indices)
    for refused in ("MR-4", "MRS-2", "MS-2", "hard"):
        with pytest.raises(InvalidArgumentError, match="MR-k with k up to 3"):
            lpqld_loader(tmp_path / "topk", folder, label_quantization=refused, **options)


@pytest.mark.parametrize("groups", [1, 2])
def test_fkd_shows_every_group_with_several_crops(folder: Path, tmp_path: Path, groups: int) -> None:
    pool = build(tmp_path / "pool", folder, "none", batch_size=16, label_kind="probabilities")
    loader = fkd_loader(pool, folder, batch_size=16 * groups, num_crops=2)
    assert len(loader) == (3 if groups == 1 else 2)
    passes = []
    for _ in range(2):
        rows = [(len(images), [len(part) for part in images]) for images, _, _ in loader]
        whole_step = (2, [16 * groups] * 2)
        assert rows == ([whole_step, whole_step, (2, [8, 8])] if groups == 1 else [whole_step, (2, [8, 8])])
        passes.append(loader.sampler.places().tolist())
        numbers = np.array([pool.index.batches[place] for place in passes[-1]])
        assert sorted(numbers) == [0, 0, 1, 1, 2, 2]
        assert len(set(passes[-1])) == 6
    assert passes[0] != passes[1]
    loader.sampler.set_epoch(0)
    assert loader.sampler.places().tolist() == passes[0]
    images, target, soft = next(iter(loader))
    by_batch = {tuple(pool.read_views(key).images.tolist()): key for key in pool.keys}
    assert torch.cat(soft).shape == (torch.cat(images).shape[0], 6)
    torch.testing.assert_close(torch.cat(soft).sum(dim=1), torch.ones(32 * groups), atol=2e-3, rtol=0)
    assert len(by_batch) == len(pool)
    assert torch.cat(target).max() < 6


def test_fkd_gives_stored_pairs_of_a_top_k_pool(folder: Path, tmp_path: Path) -> None:
    full = build(tmp_path / "full", folder, "none", batch_size=16, label_kind="probabilities")
    encode_pool(full, tmp_path / "pool", CodecRequest(name="topk:2"))
    pool = PoolReader(tmp_path / "pool")
    dense = pool_loader(pool, folder, policy="stored")
    stored = {tuple(batch.keys[0, :2].tolist()): batch.labels for batch in (*dense, *dense, *dense, *dense)}
    loader = fkd_loader(pool, folder, batch_size=16, num_crops=1)
    for (_, _, (pairs,)), place in zip(loader, loader.sampler.places().tolist(), strict=True):
        key = tuple(pool.index.key(place))
        classes, values = pairs[:, 0].long(), pairs[:, 1]
        assert torch.equal(stored[key].gather(1, classes), values)
        assert torch.equal(stored[key].topk(2, dim=1).values, values)


def test_arguments_that_do_not_fit_are_refused(folder: Path, whole: PoolReader, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"batch size is not the pool's.*16.*32"):
        lpld_loader(whole, folder, batch_size=32, mix_type="cutmix")
    for mix_type in (None, "mixup", "None"):
        with pytest.raises(InvalidArgumentError, match=r"mixes images in another way.*cutmix"):
            sre2l_loader(whole, folder, batch_size=16, mix_type=mix_type)
    plain = build(tmp_path / "plain", folder, "none", batch_size=16, label_kind="probabilities")
    with pytest.raises(InvalidArgumentError, match="expects logits"):
        sre2l_loader(plain, folder, batch_size=16, mix_type="None")
    with pytest.raises(InvalidArgumentError, match="multiple of 16"):
        fkd_loader(plain, folder, batch_size=24, num_crops=2)
    with pytest.raises(InvalidArgumentError, match="without CutMix"):
        fkd_loader(whole, folder, batch_size=16, num_crops=2)


def test_a_pool_without_complete_batches_is_played(folder: Path, tmp_path: Path) -> None:
    pool = build(tmp_path / "pool", folder, batch_size=64, epochs=2)
    programme = Programme(
        lpld_loader(pool, folder, batch_size=64, mix_type="cutmix").sampler._epochs,
        pool.index,
        batch_size=64,
        numbered=np.arange(2),
        slots=1,
        process=Process(),
    )
    programme.set_batch_list([1, 0])
    assert programme.places().tolist() == [1, 0]
    with pytest.raises(InvalidArgumentError, match="no complete batch"):
        lpqld_loader(pool, folder, batch_size=64, mix_type="cutmix")
