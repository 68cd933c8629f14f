"""Rendering on a device, on CPU tensors: its pixels are those of `apply_views`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.render import RESIZERS, ImageStore, apply_views, device, draw_views
from lpld_labels.render.device import DeviceReplay
from lpld_labels.render.images import FolderImages, scan_image_folder
from tests.lpld_labels.render.pictures import FEATURES, augmentation, picture

CPU = torch.device("cpu")
PER_EPOCH = 48
VARIANTS = [pytest.param(18, id="quick"), pytest.param(220, id="all", marks=pytest.mark.thorough)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    """Images of 16 to 500 px a side: pictures, and black and white noise, where sums are largest."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(3)
    for number in range(PER_EPOCH):
        height, width = (int(side) for side in np.exp(rng.uniform(np.log(16), np.log(500), 2)).round())
        noise = rng.integers(0, 2, (height, width, 3)).astype(np.uint8) * 255
        path = root / f"class{number % 2}" / f"{number:03d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noise if number % 3 == 0 else picture(height, width, number)).save(path)
    return ImageStore(FolderImages(root, scan_image_folder(root)))


@pytest.mark.parametrize("rounds", VARIANTS)
@pytest.mark.parametrize("resize", RESIZERS)
def test_no_pixel_differs(
    store: ImageStore, resize: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "CHUNK_BYTES", 4 << 20)
    rng = np.random.default_rng(11)
    views = different = 0
    for number in range(rounds):
        name = list(FEATURES)[number % len(FEATURES)]
        size = tuple(np.exp(rng.uniform(0, np.log(300), 2)).round().astype(int).tolist())
        settings = augmentation(resize, size, crop_ratio=(0.3, 3.0), **FEATURES[name])
        batch = draw_views(settings, store.table, seed=3, epoch=number, batch=0, batch_size=16)
        expected = apply_views(batch, store, settings, dtype=torch.float32)
        # In several chunks; every other time, the images are too large for the device.
        replay = DeviceReplay(store, settings, CPU, device_bytes=(number % 2) << 32)
        rendered = replay.render(batch)
        assert rendered.dtype == (torch.float32 if name == "mixup" else torch.uint8)
        assert rendered.is_contiguous(memory_format=torch.channels_last)
        views, different = views + batch.rows, different + int((rendered != expected).sum())
    assert (views, different) == (16 * rounds, 0)


def test_what_cannot_be_exact_is_refused_with_the_reason(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"cannot be rendered on a device .*got lanczos"):
        DeviceReplay(store, augmentation("lanczos"), CPU)
    (tmp_path / "class0").mkdir()
    Image.new("RGB", (8193, 1)).save(tmp_path / "class0/long.png")
    long = ImageStore(FolderImages(tmp_path, scan_image_folder(tmp_path)))
    with pytest.raises(InvalidArgumentError, match=r"too large to be resized .*8192 pixels, got 8193"):
        DeviceReplay(long, augmentation(), CPU)
    assert not device.images_fit(long.table, CPU, None)
    assert device.images_fit(store.table, CPU, None)
