"""Image folders and settings for tests of labelling and training."""

from pathlib import Path

import numpy as np
from PIL import Image

from lpld_core.settings import BuildSettings
from lpld_labels.format.images import ImageTable

NETWORK = "small-resnet10:width=8,stem_stride=2"
SIDE = 16
SMALL_BUILD = BuildSettings(epochs=16, batch_size=5, mix="cutmix", seed=7)
"""27 images in batches of 5 make 5 complete and 1 incomplete batch an epoch."""


def write_images(root: Path, *, classes: int = 3, per_class: int = 9, side: int = SIDE) -> Path:
    rng = np.random.default_rng(classes * 1000 + per_class)
    for label in range(classes):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(per_class):
            shape = (side + number % 3, side + number % 2, 3)
            noise = rng.integers(0, 80, shape) + 170 * label // max(classes - 1, 1)
            Image.fromarray(noise.astype(np.uint8)).save(folder / f"{number:03d}.png")
    return root


def sizes(table: ImageTable) -> set[tuple[int, int]]:
    return set(zip(table.widths.tolist(), table.heights.tolist(), strict=True))
