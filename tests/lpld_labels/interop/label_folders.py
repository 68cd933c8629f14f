"""Label folders of other programs, written with torch.save as those programs do."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

CLASSES = 20
SIZE = 32
BATCH = 8
IMAGES = 20
"""Two batches of eight and one of four an epoch."""


def write_images(folder: Path, count: int = IMAGES, *, size: int = SIZE, per_class: int = 4) -> Path:
    rng = np.random.default_rng(1)
    for number in range(count):
        path = folder / f"class{number // per_class:02d}" / f"image{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (size, size, 3), np.uint8)).save(path)
    return folder


def image_label(
    image: int, rng: np.random.Generator, classes: int = CLASSES
) -> np.ndarray[Any, np.dtype[np.float32]]:
    own = np.random.default_rng(1000 + image).normal(0, 2, classes)
    return (own + rng.normal(0, 0.5, classes)).astype(np.float32)


def batch_list(
    ids: np.ndarray[Any, Any],
    rng: np.random.Generator,
    *,
    mix: str = "cutmix",
    size: int = SIZE,
    classes: int = CLASSES,
) -> list[Any]:
    """Return what a program saves for a batch of these images."""
    rows = len(ids)
    sides = rng.integers(size // 4, size + 1, (rows, 2))
    corners = (rng.random((rows, 2)) * (size - sides + 1)).astype(np.int64)
    coords = torch.from_numpy(np.concatenate([corners, sides], axis=1) / size).float()
    labels = np.stack([image_label(int(i), rng, classes) for i in ids])
    partner, strength, box = None, None, None
    if mix != "none":
        order = rng.permutation(rows)
        partner, strength = torch.from_numpy(order), float(rng.uniform(0.6, 0.9))
        labels = strength * labels + (1 - strength) * labels[order]
        box = [np.int64(side) for side in (2, 3, size - 9, size)] if mix == "cutmix" else None
    flips = torch.from_numpy(rng.random(rows) < 0.5)
    return [coords, flips, partner, strength, box, torch.from_numpy(labels).half()]


def sampler(images: int, *, old: bool = False) -> Any:
    """Return a function that gives the ids of the next epoch, drawn by PyTorch itself."""
    generator = torch.Generator()
    generator.manual_seed(42)
    if old:
        return lambda: torch.randperm(images, generator=generator).numpy()
    drawn = torch.utils.data.RandomSampler(range(images), generator=generator)
    return lambda: np.array(list(drawn))


def write_epochs(
    folder: Path,
    *,
    epochs: int = 3,
    images: int = IMAGES,
    batch: int = BATCH,
    mix: str = "cutmix",
    old: bool = False,
    ids_file: bool = False,
    ids_in_batch: bool = False,
    patches: bool = False,
    weights: bool = False,
    cutout: bool = False,
    classes: int = CLASSES,
    size: int = SIZE,
) -> Path:
    """Write a folder of epochs: SRe2L's, with a file of ids LPLD's, with ids in the batch G-VBSM's.

    patches: as EDC's program saves them after the ids: an order of patches that it never shuffles.
    weights: as WMDD's program saves them: numbers of a text file, collected by a DataLoader.

    cutout: as LPLD's program for ImageNet-21K saves it in the place of the flips: centre, sides, colour.
    """
    rng = np.random.default_rng(0)
    draw = sampler(images, old=old)
    stored = {}
    for epoch in range(epochs):
        ids = draw()
        stored[str(epoch)] = ids.tolist()
        (folder / f"epoch_{epoch}").mkdir(parents=True)
        for number, first in enumerate(range(0, images, batch)):
            part = ids[first : first + batch]
            content = batch_list(part, rng, mix=mix, classes=classes, size=size)
            if cutout:
                centres, sides = rng.integers(0, size, (len(part), 2)) / size, np.full((len(part), 2), 0.5)
                colours = rng.integers(0, 256, (len(part), 3))
                content[1] = torch.from_numpy(np.concatenate([centres, sides, colours], 1)).float()
            if ids_in_batch:
                content.append(torch.from_numpy(part.astype(np.int64)))
            if weights:
                content.append(torch.from_numpy(rng.random(len(part))))
            if patches:
                content.append(torch.zeros(len(part), 2, 2).int())
            torch.save(content, folder / f"epoch_{epoch}" / f"batch_{number}.tar")
    if ids_file:
        (folder / "sampler_indices_epoch.json").write_text(json.dumps(stored))
    return folder


def write_flat(
    folder: Path, ids: Sequence[np.ndarray[Any, Any]], *, kept: int | None, classes: int, size: int
) -> list[list[Any]]:
    """Write batches as LPQLD's program does: float16 crops; with top-k labels, slots and boxes as bytes."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    saved = []
    for number, part in enumerate(ids):
        content = batch_list(part, rng, classes=classes, size=size)
        content[0] = content[0].half()
        if kept is not None:
            values, indices = content[5].float().topk(kept, dim=1)
            edges = [torch.tensor(int(edge), dtype=torch.uint8) for edge in content[4]]
            content[2:] = [content[2].byte(), content[3], edges, values.half(), indices.short()]
        torch.save(content, folder / f"batch_{number}.tar")
        saved.append(content)
    stored = {str(number): part.tolist() for number, part in enumerate(ids)}
    (folder / "sampler_indices_batch.json").write_text(json.dumps(stored))
    return saved


def write_hald(
    folder: Path, *, epochs: int = 2, images: int = IMAGES, classes: int = 100, size: int = SIZE
) -> Path:
    """Write a file of batches for each epoch, as HALD does: float16 crops, softmax at temperature 20."""
    rng = np.random.default_rng(0)
    stored = {}
    folder.mkdir(parents=True)
    for epoch in range(epochs):
        generator = torch.Generator()
        generator.manual_seed(42 + epoch)
        stored[str(epoch)] = torch.randperm(images, generator=generator).tolist()
        parts = np.split(np.array(stored[str(epoch)]), range(BATCH, images, BATCH))
        batches = [batch_list(part, rng, classes=classes, size=size) for part in parts]
        for batch in batches:
            batch[0], batch[5] = batch[0].half(), (batch[5].float() / 20).softmax(1).half()
        torch.save(batches, folder / f"epoch_{epoch}.tar")
    torch.save(stored, folder / "sampler_indices_dict.pt")
    return folder


REFERENCE_EPOCHS: dict[str, dict[str, Any]] = {
    "sre2l_mixup": {"epochs": 2, "batch": 10, "mix": "mixup"},
    "lpld_in1k": {"epochs": 4, "batch": 10, "ids_file": True},
    "lpld_tiny": {"epochs": 4, "batch": 10, "mix": "none", "classes": 200, "size": 64, "ids_file": True},
    "lpld_in21k": {"epochs": 2, "mix": "none", "classes": 10450, "cutout": True, "ids_file": True},
}


def write_reference(folder: Path, name: str) -> None:
    """Write a folder of 24 images as one of the authors' programs wrote a reference folder."""
    if name in REFERENCE_EPOCHS:
        write_epochs(folder, **{"images": 24, "classes": 1000, "size": 224, **REFERENCE_EPOCHS[name]})
        return
    draw = sampler(24)
    drawn = [ids[first : first + 8] for ids in (draw(), draw(), draw()) for first in (0, 8, 16)]
    del drawn[5]  # as pruned: the last batch of the second epoch
    write_flat(folder, drawn, kept=50, classes=1000, size=224)


def write_fkd(
    folder: Path, images: Path, *, crops: int = 5, kept: int = 3, half: bool = False
) -> dict[str, list[np.ndarray[Any, Any]]]:
    """Write one file per image, as FKD does; return what each holds, by class/stem."""
    rng = np.random.default_rng(2)
    contents = {}
    for path in sorted(images.rglob("*.png")):
        sides = rng.integers(4, SIZE + 1, (crops, 2))
        corners = (rng.random((crops, 2)) * (SIZE - sides + 1)).astype(np.int64)
        coords = (np.concatenate([corners, sides], axis=1) / SIZE).astype(np.float32)
        classes = np.stack([rng.permutation(CLASSES)[:kept] for _ in range(crops)])
        values = -np.sort(-rng.dirichlet(np.ones(kept + 1), crops)[:, :kept], axis=1)
        pairs = np.stack([classes, values], axis=1).astype(np.float16 if half else np.float32)
        content = [coords.astype(np.float16) if half else coords, rng.random(crops) < 0.5, pairs]
        target = folder / "train" / path.parent.name / f"{path.stem}.tar"
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, target)
        contents[f"{path.parent.name}/{path.stem}"] = content
    return contents
