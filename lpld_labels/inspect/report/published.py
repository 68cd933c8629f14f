"""What papers publish of label storage and of students trained with it: where a pool stands among them."""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 2.0**30
_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published pool: label bytes of all images, top-1 of a ResNet-18 in per cent."""

    system: str
    classes: int
    ipc: int
    label_bytes: float
    top1: float

    @property
    def bytes_per_image(self) -> float:
        return self.label_bytes / (self.classes * self.ipc)

    @property
    def name(self) -> str:
        return f"{self.system}, {self.ipc} images per class"


DATASETS = {1000: "ImageNet-1K", 10450: "ImageNet-21K-P"}
"""Number of classes -> the data set whose pools the papers publish."""


def _rows(
    system: str, classes: int, unit: float, rows: dict[int, tuple[float, float]]
) -> tuple[Published, ...]:
    return tuple(
        Published(system=system, classes=classes, ipc=ipc, label_bytes=size * unit, top1=top1)
        for ipc, (size, top1) in rows.items()
    )


# The papers write GB for GiB of ImageNet-1K; their figures come out of the layout in GiB only.
PUBLISHED: tuple[Published, ...] = (
    *_rows(
        "SRe2L 1x",
        1000,
        _GIB,
        {10: (5.67, 20.1), 20: (11.33, 33.6), 50: (28.33, 46.8), 100: (56.66, 52.8), 200: (113.33, 57.0)},
    ),
    *_rows(
        "LPLD 1x",
        1000,
        _GIB,
        {10: (5.67, 34.6), 20: (11.33, 47.2), 50: (28.33, 55.4), 100: (56.66, 59.4), 200: (113.33, 62.6)},
    ),
    *_rows(
        "LPLD 40x",
        1000,
        _GIB,
        {10: (0.14, 20.2), 20: (0.29, 33.0), 50: (0.71, 46.7), 100: (1.43, 54.0), 200: (2.85, 59.6)},
    ),
    *_rows(
        "LPQLD 40x",
        1000,
        _GIB,
        {10: (0.13, 29.6), 20: (0.25, 41.2), 50: (0.63, 51.3), 100: (1.27, 56.2), 200: (2.54, 59.9)},
    ),
    *_rows(
        "LPQLD 80x",
        1000,
        _GIB,
        {10: (0.07, 27.3), 20: (0.15, 38.6), 50: (0.37, 49.6), 100: (0.73, 54.9), 200: (1.47, 58.8)},
    ),
    *_rows("LPLD 1x", 10450, _GB, {10: (643, 25.4), 20: (1285, 30.3)}),
    *_rows("LPLD 10x", 10450, _GB, {10: (65, 24.1), 20: (129, 31.3)}),
    *_rows("LPLD 40x", 10450, _GB, {10: (16, 21.3), 20: (32, 29.4)}),
)


def published_for(classes: int) -> tuple[str, tuple[Published, ...]]:
    """Return the data set and its published pools: that of so many classes, else ImageNet-1K."""
    chosen = classes if classes in DATASETS else 1000
    return DATASETS[chosen], tuple(row for row in PUBLISHED if row.classes == chosen)
