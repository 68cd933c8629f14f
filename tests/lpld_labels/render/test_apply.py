from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional

from benchmarks.common.photos import photo_folder
from lpld_labels import Augmentation, Box, Mix, ViewBatch
from lpld_labels.errors import InvalidArgumentError, InvalidBatchError
from lpld_labels.render import RESIZERS, ImageStore, apply_views, draw_views, normalise
from lpld_labels.render.apply import shuffle_patches
from lpld_labels.render.images import FolderImages, scan_image_folder
from tests.lpld_labels.render.pictures import FEATURES, augmentation, make_folder
from tests.lpld_labels.render.slow_apply import slow_apply

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    root = make_folder(tmp_path_factory.mktemp("images"))
    return ImageStore(FolderImages(root, scan_image_folder(root)))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    root = photo_folder(tmp_path_factory.mktemp("photos"), side=224, count=96)
    return ImageStore(FolderImages(root, scan_image_folder(root)))


@pytest.fixture
def _threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def draw(settings: Augmentation, store: ImageStore, batch_size: int = 12, epoch: int = 0) -> ViewBatch:
    return draw_views(settings, store.table, seed=3, epoch=epoch, batch=0, batch_size=batch_size)


@pytest.mark.parametrize("resize", RESIZERS)
@pytest.mark.parametrize("feature", FEATURES)
def test_agrees_with_plain_steps(store: ImageStore, resize: str, feature: str) -> None:
    settings = augmentation(resize, **FEATURES[feature])
    for epoch in range(3):
        views = draw(settings, store, epoch=epoch)
        pixels = apply_views(views, store, settings)
        assert (pixels.dtype, pixels.shape) == (torch.float32, (12, 3, 32, 48))
        assert pixels.is_contiguous(memory_format=torch.channels_last)
        expected = slow_apply(views, store, settings)
        assert np.array_equal(pixels.permute(0, 2, 3, 1).numpy(), expected)


@pytest.mark.parametrize("resize", RESIZERS)
@pytest.mark.parametrize("feature", ["cutmix", "mixup", "none"])
def test_real_photos_agree_with_plain_steps(photos: ImageStore, resize: str, feature: str) -> None:
    settings = augmentation(resize, (224, 224), **FEATURES[feature])
    views = draw(settings, photos, batch_size=8)
    pixels = apply_views(views, photos, settings)
    assert np.array_equal(pixels.permute(0, 2, 3, 1).numpy(), slow_apply(views, photos, settings))


@pytest.mark.parametrize("side", [64, 160, 224])
def test_torch_agrees_with_pil_within_two_grey_levels(photos: ImageStore, side: int) -> None:
    settings = augmentation("torch", (side, side))
    views = draw(settings, photos, batch_size=32)
    ours = apply_views(views, photos, settings)
    theirs = apply_views(views, photos, replace(settings, resize="pil"))
    difference = (ours - theirs).abs()
    assert float(difference.max()) <= 2
    # Fixed-point weights of other precision: equal almost everywhere when enlarging, off by one here and
    # there when shrinking.
    assert float((difference > 0).float().mean()) < (0.005 if side == 224 else 0.08)
    assert float((difference > 1).float().mean()) < 0.001


def test_torch_resize_stays_on_the_channels_last_kernel(store: ImageStore) -> None:
    # Given any other layout PyTorch takes a slower loop and answers in planes.
    view = RESIZERS["torch"](store[0][5:30, 10:50], 48, 64)
    assert view.shape == (48, 64, 3)
    assert view.is_contiguous()


def test_pil_is_what_torchvision_does_from_the_file(photos: ImageStore) -> None:
    settings = augmentation("pil", (224, 224))
    views = draw(settings, photos, batch_size=6)
    ours = normalise(apply_views(views, photos, settings), MEAN, STD)
    for slot, index in enumerate(views.images.tolist()):
        with Image.open(photos.source.place(index)) as image:
            picture = functional.resized_crop(image.convert("RGB"), *views.crops[slot].tolist(), (224, 224))
        picture = functional.hflip(picture) if views.flips[slot] else picture
        theirs = functional.normalize(functional.to_tensor(picture), list(MEAN), list(STD))
        assert float((ours[slot] - theirs).abs().max()) < 2e-6


@pytest.mark.parametrize("feature", ["cutmix", "mixup"])
def test_mixing_before_and_after_normalising_agree(photos: ImageStore, feature: str) -> None:
    # Older programs mixed normalised images; the results must differ by no more than float rounding.
    settings = augmentation("pil", (224, 224), **FEATURES[feature])
    views = draw(settings, photos, batch_size=8)
    ours = normalise(apply_views(views, photos, settings), MEAN, STD)
    theirs = normalise(apply_views(replace(views, mix=None), photos, settings), MEAN, STD)
    assert views.mix is not None
    partners = theirs[torch.from_numpy(views.mix.partner).long()]
    if views.mix.box is None:
        theirs = theirs * views.mix.strength + partners * (1 - views.mix.strength)
    else:
        top, left, bottom, right = views.mix.box
        assert views.mix.box.area > 0
        theirs[:, :, top:bottom, left:right] = partners[:, :, top:bottom, left:right]
    assert float((ours - theirs).abs().max()) < 2e-6
    assert float((ours - theirs.flip(0)).abs().max()) > 0.5


@pytest.mark.usefixtures("_threads_restored")
@pytest.mark.parametrize("feature", FEATURES)
def test_bit_identical_whatever_the_threads(photos: ImageStore, feature: str) -> None:
    settings = augmentation("torch", (67, 91), **FEATURES[feature])
    views = draw(settings, photos, batch_size=31)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        pixels = apply_views(views, photos, settings)
        results.append((pixels, normalise(pixels, MEAN, STD)))
    for pixels, normalised in results[1:]:
        assert torch.equal(pixels, results[0][0])
        assert torch.equal(normalised, results[0][1])


def test_bit_identical_whatever_the_neighbours(photos: ImageStore) -> None:
    settings = augmentation("torch", (61, 61))
    whole = draw(settings, photos, batch_size=31)
    pixels = apply_views(whole, photos, settings)
    normalised = normalise(pixels, MEAN, STD)
    for rows in (slice(0, 1), slice(5, 12), slice(30, 31)):
        part = replace(whole, images=whole.images[rows], crops=whole.crops[rows], flips=whole.flips[rows])
        assert torch.equal(apply_views(part, photos, settings), pixels[rows])
        assert torch.equal(normalise(pixels[rows], MEAN, STD), normalised[rows])


@pytest.mark.parametrize("feature", FEATURES)
def test_memory_can_be_handed_back(store: ImageStore, feature: str) -> None:
    settings = augmentation(**FEATURES[feature])
    first, second = draw(settings, store), draw(settings, store, epoch=1)
    pixels = apply_views(first, store, settings)
    address = pixels.data_ptr()
    again = apply_views(second, store, settings, out=pixels)
    assert again.data_ptr() == address
    assert torch.equal(again, apply_views(second, store, settings))


@pytest.mark.parametrize("feature", [name for name in FEATURES if name != "mixup"])
def test_bytes_hold_the_same_values(store: ImageStore, feature: str) -> None:
    settings = augmentation(**FEATURES[feature])
    views = draw(settings, store)
    pixels = apply_views(views, store, settings)
    small = apply_views(views, store, settings, dtype=torch.uint8)
    assert small.dtype == torch.uint8
    assert small.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(small.float(), pixels)
    assert torch.equal(normalise(small, MEAN, STD), normalise(pixels, MEAN, STD))


@pytest.mark.parametrize("feature", ["everything", "mixup"])
def test_views_read_from_a_pool_are_read_only(store: ImageStore, feature: str) -> None:
    settings = augmentation(**FEATURES[feature])
    views = draw(settings, store)
    expected = apply_views(views, store, settings)
    assert views.mix is not None
    arrays = [views.images, views.crops, views.flips, views.mix.partner, views.patch_order]
    if views.cutout is not None:
        arrays += [views.cutout.boxes, views.cutout.fill]
    for array in arrays:
        if array is not None:
            array.setflags(write=False)
    assert torch.equal(apply_views(views, store, settings), expected)


def test_single_pixels(store: ImageStore) -> None:
    settings = augmentation(size=(1, 1), mix="cutmix", mix_alpha=1.0, cutout_fraction=1.0, patch_grid=15)
    views = draw(settings, store, batch_size=1)
    pixels = apply_views(views, store, settings)
    assert views.cutout is not None
    assert pixels.flatten().tolist() == views.cutout.fill[0].tolist()


def test_shuffled_tiles_and_what_no_tile_covers() -> None:
    image = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    shuffled = shuffle_patches(image, np.array([3, 0, 1, 2], np.uint8))
    assert np.array_equal(shuffled[:2, :3], image[2:4, 3:6])
    assert np.array_equal(shuffled[:2, 3:6], image[:2, :3])
    assert np.array_equal(shuffled[2:4, 3:6], image[2:4, :3])
    assert np.array_equal(shuffled[4], image[4])
    assert np.array_equal(shuffled[:, 6], image[:, 6])


def test_normalise_is_torchvisions() -> None:
    pixels = torch.rand(4, 3, 9, 5) * 255
    expected = functional.normalize(pixels / 255, list(MEAN), list(STD))
    given = pixels.clone()
    assert torch.allclose(normalise(pixels, MEAN, STD), expected, atol=1e-6, rtol=0)
    assert torch.equal(pixels, given)
    channels_last = pixels.contiguous(memory_format=torch.channels_last)
    assert torch.allclose(normalise(channels_last, MEAN, STD, out=channels_last), expected, atol=1e-6, rtol=0)
    assert torch.allclose(channels_last, expected, atol=1e-6, rtol=0)


def test_normalise_refuses_what_it_cannot_do() -> None:
    pixels = torch.rand(2, 3, 4, 4)
    with pytest.raises(InvalidArgumentError, match="out does not fit"):
        normalise(pixels, MEAN, STD, out=pixels)
    whole = torch.zeros((2, 3, 4, 4), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    with pytest.raises(InvalidArgumentError, match="out does not fit"):
        normalise(whole, MEAN, STD, out=whole)
    with pytest.raises(InvalidArgumentError, match="wrong shape"):
        normalise(pixels[:, :1], MEAN, STD)
    with pytest.raises(InvalidArgumentError, match="std is wrong"):
        normalise(pixels, MEAN, (1.0, 0.0, 1.0))


def test_unknown_backend(store: ImageStore) -> None:
    settings = augmentation("lanczos")
    message = rf"unknown resize backend \(expected one of {', '.join(RESIZERS)}, got lanczos\)"
    with pytest.raises(InvalidArgumentError, match=message):
        apply_views(draw(settings, store), store, settings)


def test_views_of_other_images(store: ImageStore) -> None:
    settings = augmentation()
    views = draw(settings, store)
    with pytest.raises(InvalidBatchError, match="epoch 0 batch 0: image outside the image table of 12"):
        apply_views(replace(views, images=views.images + 1), store, settings)
    crops = views.crops.copy()
    crops[5] = (0, 0, 65, 1)
    with pytest.raises(InvalidBatchError, match=r"crop outside its image.*'slot': 5}"):
        apply_views(replace(views, crops=crops), store, settings)


def test_views_of_another_output_size(store: ImageStore) -> None:
    settings = augmentation()
    views = draw(settings, store)
    mix = Mix(partner=np.arange(12, dtype=np.int32), strength=0.5, box=Box(0, 0, 33, 10))
    with pytest.raises(InvalidBatchError, match="mix box outside the 32 x 48 view"):
        apply_views(replace(views, mix=mix), store, settings)


def test_pixels_of_other_kinds(store: ImageStore) -> None:
    settings = augmentation(**FEATURES["mixup"])
    views = draw(settings, store)
    with pytest.raises(InvalidArgumentError, match="MixUp's pixels are not integers"):
        apply_views(views, store, settings, dtype=torch.uint8)
    with pytest.raises(InvalidArgumentError, match="float32 or uint8"):
        apply_views(views, store, settings, dtype=torch.float16)
    with pytest.raises(InvalidArgumentError, match=r"out does not fit the views .*channels-last"):
        apply_views(views, store, settings, out=torch.empty(12, 3, 32, 48))
