from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lpld_labels import Augmentation, LabelBatch, PoolHeader, PoolReader, PoolWriter, Teacher
from lpld_labels.codecs import codec_named
from lpld_labels.render import batches_per_epoch, draw_views
from lpld_labels.render.images import scan_image_folder

MEAN, STD = (0.48, 0.45, 0.4), (0.22, 0.23, 0.24)
CLASSES = 6

KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "cutmix": {"mix": "cutmix", "mix_alpha": 1.0},
    "mixup": {"mix": "mixup", "mix_alpha": 0.8},
    "cutout": {"cutout_fraction": 0.5, "mix": "cutmix", "mix_alpha": 1.0},
    "patches": {"patch_grid": 2},
}


def write_images(root: Path, count: int = 30, classes: int = CLASSES) -> Path:
    for number in range(count):
        rng = np.random.default_rng(number)
        height, width = rng.integers(18, 30, 2).tolist()
        path = root / f"class{number % classes}" / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (height, width, 3)).astype(np.uint8)).save(path)
    return root


def build(
    pool: Path,
    images: Path,
    kind: str = "cutmix",
    *,
    epochs: int = 4,
    batch_size: int = 8,
    size: int = 16,
    codec: str = "f16",
    seed: int = 5,
    label_kind: Any = "logits",
    classes: int = CLASSES,
    **header: Any,
) -> PoolReader:
    augmentation = Augmentation(
        output_height=size,
        output_width=size,
        resize="torch",
        crop_scale=(0.2, 1.0),
        flip_probability=0.5,
        **KINDS[kind],
    )
    table = scan_image_folder(images)
    teacher = Teacher(name="none", mean=MEAN, std=STD)
    described = PoolHeader(
        classes=classes,
        batch_size=batch_size,
        augmentation=augmentation,
        seed=seed,
        label_kind=label_kind,
        **{"teachers": (teacher,), **header},
    )
    with PoolWriter(pool, header=described, images=table, codec=codec_named(codec)) as writer:
        for epoch in range(epochs):
            for batch in range(batches_per_epoch(len(table), batch_size)):
                views = draw_views(
                    augmentation, table, seed=seed, epoch=epoch, batch=batch, batch_size=batch_size
                )
                labels = _labels(epoch, batch, (views.rows, classes), label_kind)
                writer.append(LabelBatch(**vars(views), labels=labels))
        writer.commit()
    return PoolReader(pool)


def _labels(
    epoch: int, batch: int, shape: tuple[int, int], label_kind: str
) -> np.ndarray[Any, np.dtype[np.float16]]:
    logits = np.random.default_rng([epoch, batch]).normal(0, 3, shape)
    if label_kind == "probabilities":
        logits = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return logits.astype(np.float16)
