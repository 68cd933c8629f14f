from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from lpld_labels import Augmentation

SIZES = ((40, 56), (64, 64), (33, 71))
"""Height and width of the images of a class, in turn."""


def picture(height: int, width: int, seed: int) -> npt.NDArray[np.uint8]:
    """Return uint8 [height, width, 3]: waves, so that resizing has something to get right, and noise."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rows * a + columns * b + c) for a, b, c in rng.uniform(0, 0.6, (3, 3))]
    noisy = 128 + 90 * np.stack(waves, axis=2) + rng.normal(0, 8, (height, width, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def make_folder(
    root: Path, classes: int = 3, per_class: int = 4, sizes: Sequence[tuple[int, int]] = SIZES
) -> Path:
    for label in range(classes):
        directory = root / f"class{label}"
        directory.mkdir(parents=True)
        for number in range(per_class):
            height, width = sizes[number % len(sizes)]
            image = Image.fromarray(picture(height, width, seed=label * 1000 + number))
            image.save(directory / f"image{number:02d}.png")
    return root


def augmentation(resize: str = "torch", size: tuple[int, int] = (32, 48), **fields: Any) -> Augmentation:
    """Return RandomResizedCrop and flip, with whatever else is given."""
    values: dict[str, Any] = {"crop_scale": (0.08, 1.0), "flip_probability": 0.5, **fields}
    return Augmentation(output_height=size[0], output_width=size[1], resize=resize, **values)


FEATURES: dict[str, dict[str, Any]] = {
    "none": {},
    "cutmix": {"mix": "cutmix", "mix_alpha": 1.0},
    "mixup": {"mix": "mixup", "mix_alpha": 0.8},
    "cutout": {"cutout_fraction": 0.5},
    "patches": {"patch_grid": 3},
    "everything": {"mix": "cutmix", "mix_alpha": 1.0, "cutout_fraction": 0.4, "patch_grid": 2},
}
