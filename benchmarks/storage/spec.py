"""What the papers publish about label storage, and the settings that lead to those numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lpld_core.train.settings import preset_named
from lpld_labels import Augmentation

UNITS: Mapping[str, float] = {"GiB": 2.0**30, "GB": 1e9, "MB": 1e6}
RATIOS = (1, 10, 20, 30, 40, 50, 100)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A row of the paper's storage table. labels, images: in the dataset's unit. pruned: by ratio."""

    ipc: int
    labels: float
    images: float
    pruned: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set as the paper labels it.

    unit: in which the paper's figures come out of this layout. Its papers write GB and MB for all.
    tolerance: how far the re-measured original layout may be off.
    """

    name: str
    classes: int
    epochs: int
    batch_size: int
    side: int
    preset: str
    unit: str
    tolerance: float
    rows: tuple[Published, ...]

    @property
    def augmentation(self) -> Augmentation:
        """Return what its labels were drawn with."""
        return preset_named(self.preset).label.augmentation((self.side, self.side))

    def images(self, ipc: int) -> int:
        return ipc * self.classes

    def label_rows(self, ipc: int, ratio: int) -> int:
        """Return the label rows at a pruning ratio; above 1, incomplete batches are dropped first."""
        if ratio == 1:
            return self.images(ipc) * self.epochs
        return self.full_batches(ipc, ratio) * self.batch_size

    def full_batches(self, ipc: int, ratio: int) -> int:
        """Return the complete batches that are kept."""
        return self.images(ipc) // self.batch_size * self.epochs // ratio

    def rest(self, ipc: int) -> int:
        """Return the rows of the incomplete last batch of an epoch."""
        return self.images(ipc) % self.batch_size


IMAGENET_1K = Dataset(
    name="ImageNet-1K",
    classes=1000,
    epochs=300,
    batch_size=1024,
    side=224,
    preset="imagenet1k",
    unit="GiB",
    tolerance=0.025,
    rows=(
        Published(ipc=10, labels=5.67, images=0.15, pruned={40: 0.14}),
        Published(ipc=20, labels=11.33, images=0.30, pruned={40: 0.29}),
        Published(ipc=50, labels=28.33, images=0.75, pruned={40: 0.71}),
        Published(ipc=100, labels=56.66, images=1.49, pruned={40: 1.43}),
        Published(ipc=200, labels=113.33, images=2.98, pruned={40: 2.85}),
        Published(ipc=300, labels=172.63, images=4.76, pruned={}),
        Published(ipc=400, labels=229.80, images=6.33, pruned={}),
    ),
)
TINY_IMAGENET = Dataset(
    name="Tiny-ImageNet",
    classes=200,
    epochs=100,
    batch_size=64,
    side=64,
    preset="tiny",
    unit="MB",
    tolerance=0.025,
    rows=(
        Published(ipc=50, labels=449, images=21, pruned={}),
        Published(ipc=100, labels=898, images=40, pruned={}),
    ),
)
IMAGENET_21K = Dataset(
    name="ImageNet-21K-P",
    classes=10450,
    epochs=300,
    batch_size=32,
    side=224,
    preset="imagenet21k",
    unit="GB",
    tolerance=0.05,
    rows=(
        Published(ipc=10, labels=643, images=3, pruned={10: 65, 40: 16}),
        Published(ipc=20, labels=1285, images=5, pruned={10: 129, 40: 32}),
    ),
)
DATASETS = (IMAGENET_1K, TINY_IMAGENET, IMAGENET_21K)

PUBLISHED_SYSTEMS: Mapping[str, Mapping[int, tuple[float, float]]] = {
    "LPLD x40": {10: (0.14, 20.2), 20: (0.29, 33.0), 50: (0.71, 46.7), 100: (1.43, 54.0), 200: (2.85, 59.6)},
    "LPQLD x40": {10: (0.13, 29.6), 20: (0.25, 41.2), 50: (0.63, 51.3), 100: (1.27, 56.2), 200: (2.54, 59.9)},
    "LPQLD x80": {10: (0.07, 27.3), 20: (0.15, 38.6), 50: (0.37, 49.6), 100: (0.73, 54.9), 200: (1.47, 58.8)},
}
"""Label storage and top-1 of ResNet-18 on ImageNet-1K by images per class, as the systems' papers say."""

CLASS_STATISTICS: Mapping[str, tuple[int, float, float]] = {
    "Tiny-ImageNet": (200, 43.06, 50.41),
    "ImageNet-1K": (1000, 44.66, 81.30),
    "ImageNet-21K-P": (10450, 247.20, 445.87),
}
"""Classes, and the paper's MB of a ResNet-18 without and with class-wise statistics."""

FKD_RATES: Mapping[int, float] = {100: 4.5, 50: 8.2, 10: 23.0}
"""The paper's full compression rate of FKD's top-K labels."""
COMPONENT_BYTES: Mapping[str, int] = {
    "1. crop coordinates": 16,
    "2. flip status": 1,
    "3. index of cutmix images": 8,
    "4. strength of cutmix": 8,
    "5. cutmix box": 16,
    "6. prediction logits": 2000,
}
"""Bytes per row that lead to those rates: float32[4], bool, int64, float64, int32[4] and fp16[1000]."""
