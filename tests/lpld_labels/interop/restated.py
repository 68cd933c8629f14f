"""What the authors' programs do with pixels, restated: labelling a batch, and replaying a saved one.

Pillow crops, resizes and mirrors each image, values are scaled and normalised, whole batches are mixed.
Saved crops are fractions: replaying multiplies them by the size of the image and lets Pillow round.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from lpld_core.teachers.teacher import LoadedTeacher, load_teacher

Floats = tuple[float, float, float]
Corners = tuple[float, float, float, float]
SMALL = "small-resnet10:width=8,stem_stride=2"


def small_teacher(classes: int, *, mean: Floats, std: Floats, side: int = 32, seed: int = 0) -> LoadedTeacher:
    """Return a small network with random weights that tells images apart."""
    teacher = load_teacher(
        SMALL, weights="random", classes=classes, input_size=(side, side), mean=mean, std=std
    )
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for parameter in teacher.model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator) * parameter.std())
    return teacher


def image_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.png"))


def one_view(
    path: Path, corners: Corners, flip: bool, side: int, *, bicubic: bool = False
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Cut (left, top, right, bottom), which Pillow rounds; resize; mirror: uint8 [side, side, 3]."""
    filter_ = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    with Image.open(path) as image:
        view = image.convert("RGB").crop(corners).resize((side, side), filter_)
    return np.asarray(view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else view)


def replayed(saved: Sequence[Any], files: Sequence[Path], side: int) -> torch.Tensor:
    """Return the views of a saved batch as a trainer makes them, before mixing: uint8 [B, 3, side, side]."""
    coords, flips = saved[0], saved[1]
    views = []
    for slot, path in enumerate(files):
        with Image.open(path) as image:
            width, height = image.size
        top, left = coords[slot][0].item() * height, coords[slot][1].item() * width
        tall, wide = coords[slot][2].item() * height, coords[slot][3].item() * width
        corners = (left, top, left + wide, top + tall)
        views.append(one_view(path, corners, bool(flips[slot]), side))
    return torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2)


def mixed(pixels: torch.Tensor, saved: Sequence[Any]) -> torch.Tensor:
    partner, strength, box = saved[2:5]
    if partner is None:
        return pixels
    index = partner.long()
    if box is None:
        return torch.add(strength * pixels, (1 - strength) * pixels[index])
    r1, c1, r2, c2 = (int(edge) for edge in box)
    pixels = pixels.clone()
    pixels[:, :, r1:r2, c1:c2] = pixels[index, :, r1:r2, c1:c2]
    return pixels


def normalised(pixels: torch.Tensor, teacher: LoadedTeacher) -> torch.Tensor:
    mean = torch.tensor(teacher.mean)[:, None, None]
    std = torch.tensor(teacher.std)[:, None, None]
    return (pixels.float() / 255 - mean) / std


Combine = Callable[[torch.Tensor], torch.Tensor]


def averaged(outputs: torch.Tensor) -> torch.Tensor:
    """As G-VBSM's branches for small images make one label of [teachers, B, C]."""
    return outputs.mean(0)


def norm_scaled(outputs: torch.Tensor) -> torch.Tensor:
    """As G-VBSM's branch for ImageNet-1K does."""
    norm = torch.linalg.vector_norm(outputs, dim=(1, 2), keepdim=True)
    scaled: torch.Tensor = outputs / norm * norm.mean(0, keepdim=True)
    return scaled.mean(0)


@torch.no_grad()
def label_again(
    folder: Path, images: Path, teachers: Sequence[LoadedTeacher], *, combine: Combine = averaged, side: int
) -> None:
    """Replace the labels of a folder with ids in every batch by what the teachers say about its views."""
    files = image_files(images)
    for path in sorted(folder.rglob("batch_*.tar")):
        saved = torch.load(path, weights_only=False)
        pixels = replayed(saved, [files[i] for i in saved[6].tolist()], side)
        outputs = [t.model(mixed(normalised(pixels, t), saved)) for t in teachers]
        saved[5] = combine(torch.stack(outputs)).half()
        torch.save(saved, path)


@torch.no_grad()
def write_fkd_labels(
    folder: Path,
    images: Path,
    teacher: LoadedTeacher,
    *,
    label_type: str,
    side: int,
    crops: int = 3,
    temperature: float = 1.0,
    half: bool = False,
) -> None:
    """Write what FKD's program writes: folder/NAME/train/CLASS/IMAGE.tar, NumPy arrays."""
    rng = np.random.default_rng(3)
    for path in image_files(images):
        with Image.open(path) as image:
            width, height = image.size
        sizes = np.stack([rng.integers(4, height + 1, crops), rng.integers(4, width + 1, crops)], axis=1)
        corners = (rng.random((crops, 2)) * (np.array([height, width]) - sizes + 1)).astype(np.int64)
        flips = rng.random(crops) < 0.5
        views = [
            one_view(path, (left, top, left + wide, top + tall), bool(flip), side, bicubic=True)
            for (top, left), (tall, wide), flip in zip(corners, sizes, flips, strict=True)
        ]
        pixels = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2)
        output = torch.softmax(teacher.model(normalised(pixels, teacher)) / temperature, dim=1)
        coords = np.concatenate([corners, sizes], axis=1) / np.array([height, width, height, width])
        labels = _quantised(output, label_type).numpy()
        dtype = np.float16 if half else np.float32
        content = [coords.astype(dtype), flips, labels.astype(np.float16) if half else labels]
        target = folder / "data" / "train" / path.parent.name / f"{path.stem}.tar"
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, target)


def _quantised(output: torch.Tensor, label_type: str) -> torch.Tensor:
    if label_type == "hard":
        return output.argmax(1)
    k = 1 if label_type == "smoothing" else int(label_type.rpartition("_k")[2])
    values, classes = output.sort(dim=1, descending=True)
    pairs = torch.stack([classes[:, :k].float(), values[:, :k]], dim=1)
    return pairs[:, :, 0] if label_type == "smoothing" else pairs
