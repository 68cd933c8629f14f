"""Applying views, against a second implementation in plain NumPy, one view and one step at a time."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, functional

from benchmarks.common.photos import photo_folder
from lpld_labels import Augmentation, Box, Mix, ViewBatch
from lpld_labels.errors import InvalidArgumentError, InvalidBatchError
from lpld_labels.render import RESIZERS, ImageStore, apply_views, draw_views, normalise
from lpld_labels.render.apply import centre_view, evaluation_input, resized_crop
from lpld_labels.render.images import FolderImages, scan_image_folder
from tests.lpld_labels.render.pictures import FEATURES, augmentation, make_folder

Pixels = npt.NDArray[np.uint8]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    root = make_folder(tmp_path_factory.mktemp("images"))
    return ImageStore(FolderImages(root, scan_image_folder(root)))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    root = photo_folder(tmp_path_factory.mktemp("photos"), side=224, count=48)
    return ImageStore(FolderImages(root, scan_image_folder(root)))


def draw(settings: Augmentation, store: ImageStore, batch_size: int = 12, epoch: int = 0) -> ViewBatch:
    return draw_views(settings, store.table, seed=3, epoch=epoch, batch=0, batch_size=batch_size)


@pytest.mark.parametrize("resize", RESIZERS)
@pytest.mark.parametrize("feature", FEATURES)
def test_agrees_with_plain_steps(store: ImageStore, resize: str, feature: str) -> None:
    settings = augmentation(resize, **FEATURES[feature])
    pixels = apply_views(draw(settings, store), store, settings)
    address = pixels.data_ptr()
    for epoch in range(3):
        views = draw(settings, store, epoch=epoch)
        pixels = apply_views(views, store, settings, out=pixels)
        assert (pixels.dtype, pixels.shape, pixels.data_ptr()) == (torch.float32, (12, 3, 32, 48), address)
        assert pixels.is_contiguous(memory_format=torch.channels_last)
        assert np.array_equal(pixels.permute(0, 2, 3, 1).numpy(), slow_apply(views, store, settings))
    if feature != "mixup":
        small = apply_views(views, store, settings, dtype=torch.uint8)
        assert small.dtype == torch.uint8
        assert small.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(small.float(), pixels)
        assert torch.equal(normalise(small, MEAN, STD), normalise(pixels, MEAN, STD))


@pytest.mark.parametrize(("side", "different"), [(64, 0.08), (224, 0.005)])
def test_torch_is_within_two_grey_levels_of_pil(photos: ImageStore, side: int, different: float) -> None:
    settings = augmentation("torch", (side, side))
    views = draw(settings, photos, batch_size=32)
    theirs = apply_views(views, photos, replace(settings, resize="pil"))
    difference = (apply_views(views, photos, settings) - theirs).abs()
    assert float(difference.max()) <= 2
    # Fixed-point weights of another precision: off by one here and there, above all when shrinking.
    assert float((difference > 0).float().mean()) < different
    assert float((difference > 1).float().mean()) < 0.001


def test_pil_gives_the_values_of_torchvision(photos: ImageStore) -> None:
    settings = augmentation("pil", (224, 224))
    views = draw(settings, photos, batch_size=6)
    ours = normalise(apply_views(views, photos, settings), MEAN, STD)
    for slot, index in enumerate(views.images.tolist()):
        with Image.open(photos.source.place(index)) as image:
            picture = functional.resized_crop(image.convert("RGB"), *views.crops[slot].tolist(), (224, 224))
        picture = functional.hflip(picture) if views.flips[slot] else picture
        theirs = functional.normalize(functional.to_tensor(picture), list(MEAN), list(STD))
        assert float((ours[slot] - theirs).abs().max()) < 2e-6


@pytest.mark.parametrize("feature", ["everything", "mixup"])
def test_values_do_not_depend_on_threads(photos: ImageStore, feature: str) -> None:
    settings = augmentation("torch", (67, 91), **FEATURES[feature])
    views = draw(settings, photos, batch_size=31)
    results, before = [], torch.get_num_threads()
    for threads in (1, 2, 3, before):
        torch.set_num_threads(threads)
        pixels = apply_views(views, photos, settings)
        results.append((pixels, normalise(pixels, MEAN, STD)))
    for pixels, normalised in results[1:]:
        assert torch.equal(pixels, results[0][0])
        assert torch.equal(normalised, results[0][1])


def test_values_do_not_depend_on_neighbours(photos: ImageStore) -> None:
    settings = augmentation("torch", (61, 61))
    whole = draw(settings, photos, batch_size=31)
    pixels = apply_views(whole, photos, settings)
    normalised = normalise(pixels, MEAN, STD)
    for rows in (slice(0, 1), slice(5, 12), slice(30, 31)):
        part = replace(whole, images=whole.images[rows], crops=whole.crops[rows], flips=whole.flips[rows])
        assert torch.equal(apply_views(part, photos, settings), pixels[rows])
        assert torch.equal(normalise(pixels[rows], MEAN, STD), normalised[rows])


def test_single_pixels(store: ImageStore) -> None:
    settings = augmentation(size=(1, 1), mix="cutmix", mix_alpha=1.0, cutout_fraction=1.0, patch_grid=15)
    views = draw(settings, store, batch_size=1)
    pixels = apply_views(views, store, settings)
    assert views.cutout is not None
    assert pixels.flatten().tolist() == views.cutout.fill[0].tolist()


def test_normalise_gives_the_values_of_torchvision() -> None:
    pixels = torch.rand(4, 3, 9, 5) * 255
    expected = functional.normalize(pixels / 255, list(MEAN), list(STD))
    given = pixels.clone()
    assert torch.allclose(normalise(pixels, MEAN, STD), expected, atol=1e-6, rtol=0)
    assert torch.equal(pixels, given)
    channels_last = pixels.contiguous(memory_format=torch.channels_last)
    normalise(channels_last, MEAN, STD, out=channels_last)
    assert torch.allclose(channels_last, expected, atol=1e-6, rtol=0)


def test_normalise_refuses_other_shapes_dtypes_and_values() -> None:
    pixels = torch.rand(2, 3, 4, 4)
    integers = torch.zeros((2, 3, 4, 4), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    for given in (pixels, integers):
        with pytest.raises(InvalidArgumentError, match="out does not fit"):
            normalise(given, MEAN, STD, out=given)
    with pytest.raises(InvalidArgumentError, match="wrong shape"):
        normalise(pixels[:, :1], MEAN, STD)
    with pytest.raises(InvalidArgumentError, match="std is wrong"):
        normalise(pixels, MEAN, (1.0, 0.0, 1.0))


CROPS = np.tile(np.array([0, 0, 33, 1], np.int32), (12, 1))
CROPS[5] = (0, 0, 65, 1)
BEYOND = Mix(partner=np.arange(12, dtype=np.int32), strength=0.5, box=Box(0, 0, 33, 10))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"images": np.arange(1, 13, dtype=np.int32)},
            "epoch 0 batch 0: image outside the image table of 12",
        ),
        ({"crops": CROPS}, r"crop outside its image.*'slot': 5}"),
        ({"mix": BEYOND}, "mix box outside the 32 x 48 view"),
    ],
)
def test_views_that_do_not_fit_are_refused(store: ImageStore, changes: dict[str, Any], words: str) -> None:
    settings = augmentation()
    with pytest.raises(InvalidBatchError, match=words):
        apply_views(replace(draw(settings, store), **changes), store, settings)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": torch.uint8}, "MixUp requires pixels of a float dtype"),
        ({"dtype": torch.float16}, "float32 or uint8"),
        ({"out": torch.empty(12, 3, 32, 48)}, "out does not fit the views .*channels-last"),
    ],
)
def test_pixels_of_other_kinds_are_refused(store: ImageStore, options: dict[str, Any], words: str) -> None:
    settings = augmentation(**FEATURES["mixup"])
    with pytest.raises(InvalidArgumentError, match=words):
        apply_views(draw(settings, store), store, settings, **options)


def test_an_unknown_resize_backend_is_refused(store: ImageStore) -> None:
    settings = augmentation("lanczos")
    message = rf"unknown resize backend \(expected one of {', '.join(RESIZERS)}, got lanczos\)"
    with pytest.raises(InvalidArgumentError, match=message):
        apply_views(draw(settings, store), store, settings)


def slow_apply(views: ViewBatch, store: ImageStore, settings: Augmentation) -> npt.NDArray[np.float32]:
    plain = [_view(views, slot, store[int(views.images[slot])], settings) for slot in range(views.rows)]
    if views.mix is None:
        return np.stack(plain).astype(np.float32)
    mixed = []
    for slot, partner in enumerate(views.mix.partner.tolist()):
        own, other = plain[slot].astype(np.float32), plain[partner].astype(np.float32)
        if views.mix.box is not None:
            mixed.append(np.where(_inside(views.mix.box, own.shape), other, own))
        else:
            mixed.append(own * np.float32(views.mix.strength) + other * np.float32(1 - views.mix.strength))
    return np.stack(mixed)


def _view(views: ViewBatch, slot: int, image: Pixels, settings: Augmentation) -> Pixels:
    if views.patch_order is not None:
        image = _shuffled(image, views.patch_order[slot].tolist())
    top, left, height, width = views.crops[slot].tolist()
    size = (settings.output_height, settings.output_width)
    if settings.resize != "torch":
        mode = InterpolationMode.BICUBIC if settings.resize == "pil_bicubic" else InterpolationMode.BILINEAR
        # Columns first, whatever Pillow would do at once.
        columns = (height, size[1])
        picture = functional.resized_crop(Image.fromarray(image), top, left, height, width, columns, mode)
        picture = functional.resize(picture, size, mode)
        view = np.asarray(functional.hflip(picture) if views.flips[slot] else picture)
    else:
        # Planes instead of channels-last: another loop of PyTorch's, which must give the same values.
        crop = image[top : top + height, left : left + width]
        planes = torch.from_numpy(crop.transpose(2, 0, 1).copy())[None]
        resized = torch.nn.functional.interpolate(planes, size, mode="bilinear", antialias=True)
        view = resized[0].numpy().transpose(1, 2, 0)
        view = view[:, ::-1] if views.flips[slot] else view
    if views.cutout is not None:
        box = Box(*views.cutout.boxes[slot].tolist())
        view = np.where(_inside(box, view.shape), views.cutout.fill[slot], view)
    return view


def _inside(box: Box, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    inside = (rows >= box.top) & (rows < box.bottom) & (columns >= box.left) & (columns < box.right)
    return np.asarray(inside[..., None])


def _shuffled(image: Pixels, order: list[int]) -> Pixels:
    """Each pixel of a tile comes from the same place of another tile; what no tile covers stays."""
    grid = round(len(order) ** 0.5)
    tall, wide = image.shape[0] // grid, image.shape[1] // grid
    shuffled: Pixels = image.copy()
    for row in range(tall * grid):
        for column in range(wide * grid):
            source = order[row // tall * grid + column // wide]
            shuffled[row, column] = image[
                source // grid * tall + row % tall, source % grid * wide + column % wide
            ]
    return shuffled


@pytest.mark.parametrize(
    ("shape", "size", "crop"),
    [
        ((64, 64), 64, (0, 0, 64, 64)),
        ((64, 100), 64, (0, 18, 64, 64)),
        ((256, 256), 128, (16, 16, 224, 224)),
        ((500, 375), 128, (86, 23, 328, 328)),
        ((128, 128), 128, (0, 0, 128, 128)),
        ((1, 9), 64, (0, 4, 1, 1)),
    ],
)
def test_centre_crops(shape: tuple[int, int], size: int, crop: tuple[int, int, int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype(np.uint8)
    assert torch.equal(centre_view(image, (size, size)), resized_crop(image, crop, (size, size)))


def test_centre_view_keeps_the_shape_of_things() -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    assert (centre_view(wide, (5, 5)) == 200).all()
    assert (centre_view(wide.transpose(1, 0, 2).copy(), (5, 5)) == 200).all()
    assert centre_view(wide, (4, 12)).shape == (4, 12, 3)


@pytest.mark.parametrize(
    ("mode", "size"), [("RGB", (16, 16)), ("RGB", (128, 144)), ("L", (16, 16)), ("RGBA", (16, 12))]
)
def test_validation_images_become_normalised_centre_views(mode: str, size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (190, 170, 4)).astype(np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    found = evaluation_input(image, size=size, mean=MEAN, std=STD)
    assert (found.dtype, found.shape) == (torch.float32, (3, *size))
    view = centre_view(np.array(image.convert("RGB")), size).permute(2, 0, 1)
    expected = functional.normalize(view / 255, list(MEAN), list(STD))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert torch.equal(evaluation_input(image, size=size, mean=None, std=None), view.float())
