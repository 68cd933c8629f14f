"""Metrics of image folders: similarity within classes, and MMD to real images (paper, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from lpld_core.images import RealFolder, Rows, labelled_batches
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.random_streams import Stream

_BANDWIDTH_SAMPLE = 2000
_KERNEL_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Cosine similarity within classes. with_self: mean if each image is also paired with itself."""

    mean: float
    std: float
    with_self: float


@dataclass(frozen=True, kw_only=True)
class FolderAnalysis:
    """Metrics of a folder. mmd_squared: distance to the real images; None for the folder of real images."""

    name: str
    images: int
    similarity: Similarity
    mmd_squared: float | None


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Metrics of all folders, real images last. bandwidth: width of the Gaussian kernel, in feature units."""

    folders: tuple[FolderAnalysis, ...]
    bandwidth: float


def class_similarity(features: Tensor, labels: Tensor) -> Similarity:
    """Return the similarity within classes. features: float [N, dimensions]. labels: int64 [N].

    The mean cosine similarity over all pairs of n unit vectors is (|sum|^2 - n) / (n (n - 1)).
    """
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    _, row, count = torch.unique(labels, return_inverse=True, return_counts=True)
    if int(count.min()) < 2:
        raise InvalidArgumentError(
            "similarity needs two images of every class", expected="at least 2", got=int(count.min())
        )
    sums = torch.zeros(len(count), unit.shape[1], dtype=torch.float64).index_add_(0, row, unit)
    squared = sums.square().sum(dim=1)
    distinct = (squared - count) / (count * (count - 1))
    return Similarity(
        mean=float(distinct.mean()),
        std=float(distinct.std(correction=0)),
        with_self=float((squared / count.square()).mean()),
    )


def median_bandwidth(features: Tensor) -> float:
    """Return the median distance between feature vectors [N, dimensions], from at most 2000 of them."""
    step = -(-len(features) // _BANDWIDTH_SAMPLE)
    median = float(torch.pdist(features[::step].double()).median())
    if not median > 0:
        raise InvalidArgumentError("the real images' features are all the same", hint="use a different model")
    return median


def mean_kernel(first: Tensor, second: Tensor, bandwidth: float) -> float:
    """Return the mean of exp(-|a - b|^2 / (2 bandwidth^2)) over rows a of `first` and rows b of `second`."""
    a, b = first.double(), second.double()
    total = 0.0
    for rows in torch.split(a, _KERNEL_ROWS):
        squared = torch.cdist(rows, b).square_()
        total += float(squared.mul_(-1 / (2 * bandwidth**2)).exp_().sum())
    return total / (len(a) * len(b))


def mmd_squared(real: Tensor, synthetic: Tensor, bandwidth: float, real_kernel: float | None = None) -> float:
    """Return the squared MMD with a Gaussian kernel. real_kernel: mean_kernel(real, real), if known."""
    own = mean_kernel(real, real, bandwidth) if real_kernel is None else real_kernel
    return own + mean_kernel(synthetic, synthetic, bandwidth) - 2 * mean_kernel(real, synthetic, bandwidth)


def analyse(
    model: LoadedTeacher,
    folders: Sequence[tuple[str, RealFolder]],
    real: RealFolder,
    *,
    real_per_class: int = 200,
    batch_size: int = 128,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Analysis:
    """Compare image folders, given as (name, folder), with real images in a model's feature space.

    real_per_class: number of random real images per class. progress: called with (images done, total).
    """
    for folder in (*(folder for _, folder in folders), real):
        model.require_classes(folder.classes, "image folder", where=folder.root)
    parts = [(name, folder, np.arange(len(folder))) for name, folder in folders]
    sampled = [
        real.sample(label, real_per_class, seed=seed, stream=Stream.ANALYSIS_SAMPLE)
        for label in range(real.classes)
    ]
    parts.append(("real", real, np.concatenate(sampled)))
    total, done = sum(len(rows) for _, _, rows in parts), 0

    def batches(folder: RealFolder, rows: Rows) -> Iterator[tuple[Tensor, Tensor]]:
        nonlocal done
        for images, labels in labelled_batches(model, folder, rows, batch_size=batch_size):
            yield images, labels
            done += len(labels)
            if progress is not None:
                progress(done, total)

    features = [extract_features(model, batches(folder, rows)) for _, folder, rows in parts]
    real_features, _ = features[-1]
    bandwidth = median_bandwidth(real_features)
    real_kernel = mean_kernel(real_features, real_features, bandwidth)
    results = [
        FolderAnalysis(
            name=name,
            images=len(rows),
            similarity=class_similarity(values, labels),
            mmd_squared=(
                None if folder is real else mmd_squared(real_features, values, bandwidth, real_kernel)
            ),
        )
        for (name, folder, rows), (values, labels) in zip(parts, features, strict=True)
    ]
    return Analysis(folders=tuple(results), bandwidth=bandwidth)


@torch.inference_mode()
def extract_features(
    teacher: LoadedTeacher, batches: Iterable[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return features (the last linear layer's inputs) float32 [N, dimensions] and labels int64 [N]."""
    linear = [module for module in teacher.model.modules() if isinstance(module, nn.Linear)]
    heads = [module for module in linear if module.out_features == teacher.classes]
    if not heads:
        raise InvalidArgumentError(
            "cannot find this network's features",
            where=teacher.description.name,
            expected=f"a final linear layer with {teacher.classes} outputs",
            hint="use a network such as a ResNet",
        )
    head = heads[-1]
    taken: list[Tensor] = []
    labels: list[Tensor] = []

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        taken.append(inputs[0].float().cpu())

    with head.register_forward_pre_hook(before):
        for images, targets in batches:
            teacher.model(images.to(head.weight.device))
            labels.append(targets)
    return torch.cat(taken), torch.cat(labels)
