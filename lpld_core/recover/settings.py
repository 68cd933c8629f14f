"""Settings of a recovery run, the papers' presets, and the grouping of images. Does not import torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from lpld_labels.exec.job import require_listable
from lpld_labels.format.limits import MAX_SEED
from lpld_labels.settings import Setting, check_settings, wrong_setting

OptimisedMethod = Literal["lpld", "sre2l", "cda"]
Method = Literal["lpld", "sre2l", "cda", "rded"]
StatisticsKind = Literal["class", "global"]
RollDirection = Literal["both", "forward"]
ImageFormat = Literal["jpeg", "png"]
PresetName = Literal["imagenet1k", "tiny", "imagenet21k"]
_SMALL_SIDE = 64
_FEWER = "recover fewer images per class (--ipc)"
_PASS_IMAGES = 100
"""Default number of images in a forward pass: enough to keep a processor busy."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Images that share statistics and views. members: (class, number) pairs. key: seed of random draws."""

    key: tuple[int, int]
    members: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Units that share a forward pass. Groups are independent: a run is divided and resumed by group."""

    index: int
    units: tuple[Unit, ...]

    @property
    def members(self) -> tuple[tuple[int, int], ...]:
        return tuple(member for unit in self.units for member in unit.members)

    @property
    def classes(self) -> tuple[int, ...]:
        return tuple(sorted({label for label, _ in self.members}))


_ITERATIONS = Setting("Number of optimiser steps per image.  [default: the preset's]", ge=1)
_RATE = Setting("Learning rate; decays to 0 as a cosine.  [default: the preset's]", gt=0)
_ALPHA = Setting("Weight of the BatchNorm loss.  [default: the preset's]", ge=0)
_ROLL = Setting("Largest random shift in pixels.  [default: the preset's]", ge=0)
_KIND = Setting("Statistics to match (lpld): of each class, or global, as an ablation.  [default: class]")
_GROUP = Setting("Classes (sre2l, cda: batches) per forward pass.  [default: up to 100 images in all]", ge=1)


@dataclass(frozen=True, kw_only=True)
class ImageChoices:
    """Settings that users can choose for every method."""

    ipc: Annotated[int, Setting("Number of images per class.", ge=1)]
    smallest_crop: Annotated[float, Setting("Minimum crop area, as a share of the image.", gt=0, le=1)] = 0.08
    seed: Annotated[int, Setting("Seed of all noise and views.", ge=0, le=MAX_SEED)] = 0
    format: Annotated[ImageFormat, Setting("Format of the image files.")] = "jpeg"

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class RecoverChoices(ImageChoices):
    """All settings that users can choose. None: use the default of the method or preset."""

    iterations: Annotated[int | None, _ITERATIONS] = None
    learning_rate: Annotated[float | None, _RATE] = None
    alpha: Annotated[float | None, _ALPHA] = None
    roll: Annotated[int | None, _ROLL] = None
    statistics_kind: Annotated[StatisticsKind | None, _KIND] = None
    class_group: Annotated[int | None, _GROUP] = None


@dataclass(frozen=True, kw_only=True)
class ImageSettings(ImageChoices):
    """Settings that all methods have. size: height and width of the images."""

    size: tuple[int, int]
    quality: Annotated[int, Setting("Quality of JPEG files.", option=False, ge=1, le=100)] = 95


@dataclass(frozen=True, kw_only=True)
class RecoverSettings(ImageSettings):
    """Settings of an optimised recovery (lpld, sre2l, cda)."""

    method: Annotated[OptimisedMethod, Setting(option=False)]
    iterations: Annotated[int, _ITERATIONS]
    learning_rate: Annotated[float, _RATE]
    alpha: Annotated[float, _ALPHA]
    roll: Annotated[int, _ROLL]
    roll_direction: Annotated[
        RollDirection, Setting("Roll either way along each axis, or only down and right.", option=False)
    ] = "both"
    statistics_kind: Annotated[StatisticsKind, _KIND] = "class"
    class_group: Annotated[int, _GROUP] = 10
    batch_size: Annotated[int, Setting("Number of classes per sre2l or cda batch.", option=False, ge=1)] = 100
    first_layer_weight: Annotated[float, Setting("First layer's loss weight.", option=False, ge=0)] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method != "lpld" and self.statistics_kind != "global":
            expected = f"global, because {self.method} mixes classes"
            raise wrong_setting("statistics_kind", expected, self.statistics_kind)

    def groups(self, classes: int) -> list[Group]:
        if self.method == "lpld":
            return grouped(class_units(classes, self.ipc), self.class_group)
        return grouped(mixed_units(classes, self.ipc, self.batch_size), self.class_group)

    def crop_from(self, iteration: int) -> float:
        """Return the minimum area of a crop, as a share of the image; cda lowers it from 1 along a cosine."""
        if self.method != "cda":
            return self.smallest_crop
        return self.smallest_crop + (1 - self.smallest_crop) * self._cosine(iteration)

    def rate(self, iteration: int) -> float:
        return self.learning_rate * self._cosine(iteration)

    def _cosine(self, iteration: int) -> float:
        """Return a factor that falls from 1 at the first iteration to 0 after the last."""
        return 0.5 * (1 + math.cos(math.pi * iteration / self.iterations))


@dataclass(frozen=True, kw_only=True)
class RdedSettings(ImageSettings):
    """Settings of rded. Each image consists of tiles x tiles crops of real images."""

    candidates: Annotated[int, Setting("rded: number of real images per class.", option=False, ge=1)] = 300
    crops: Annotated[int, Setting("rded: number of crops per real image.", option=False, ge=1)] = 5
    tiles: Annotated[int, Setting("rded: each image is a grid of N x N crops.", option=False, ge=1)] = 2
    method: Literal["rded"] = "rded"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size[0] % self.tiles or self.size[1] % self.tiles:
            raise wrong_setting("size", f"a multiple of {self.tiles}", f"{self.size[0]} x {self.size[1]}")

    @property
    def tile(self) -> tuple[int, int]:
        return self.size[0] // self.tiles, self.size[1] // self.tiles

    def groups(self, classes: int) -> list[Group]:
        return grouped(class_units(classes, self.ipc), 1)


_IMAGENET = {"roll": 32, "roll_direction": "forward"}
RECOVERY_PRESETS: dict[PresetName, dict[str, Any]] = {
    "imagenet1k": {"iterations": 4000, "learning_rate": 0.25, "alpha": 0.01, **_IMAGENET},
    "tiny": {"iterations": 4000, "learning_rate": 0.1, "alpha": 0.05, "roll": 4, "roll_direction": "both"},
    "imagenet21k": {"iterations": 2000, "learning_rate": 0.05, "alpha": 0.25, **_IMAGENET},
}
"""The papers' values for each data set."""


def method_settings(
    method: Method,
    *,
    size: tuple[int, int],
    classes: int,
    ipc: int,
    preset: PresetName | None = None,
    **given: Any,
) -> RecoverSettings | RdedSettings:
    """Fill in missing settings from a preset (None: chosen by image size); ignore other methods' settings."""
    kind = RdedSettings if method == "rded" else RecoverSettings
    known = {entry.name for entry in fields(kind)}
    chosen = {name: value for name, value in given.items() if name in known}
    if method == "rded":
        return RdedSettings(ipc=ipc, size=size, **chosen)
    by_class = method == "lpld"
    batch_size = chosen.get("batch_size", RecoverSettings.batch_size)
    usual = {
        **RECOVERY_PRESETS[preset or ("tiny" if max(size) <= _SMALL_SIDE else "imagenet1k")],
        "statistics_kind": "class" if by_class else "global",
        "class_group": fitting_group(ipc if by_class else min(batch_size, classes)),
    }
    if method == "cda":
        usual["roll_direction"] = "forward"  # on every data set
    return RecoverSettings(method=method, ipc=ipc, size=size, **{**usual, **chosen})


def fitting_group(unit_images: int) -> int:
    """Return how many units of `unit_images` images fill a forward pass."""
    return max(1, _PASS_IMAGES // unit_images)


def class_units(classes: int, ipc: int) -> list[Unit]:
    """Return a unit for each class, with all images of the class (lpld)."""
    require_listable(classes * ipc, what="images", hint=_FEWER)
    return [
        Unit(key=(label, 0), members=tuple((label, number) for number in range(ipc)))
        for label in range(classes)
    ]


def mixed_units(classes: int, ipc: int, batch_size: int) -> list[Unit]:
    """Return units of one image from each of `batch_size` consecutive classes (sre2l, cda)."""
    require_listable(classes * ipc, what="images", hint=_FEWER)
    return [
        Unit(
            key=(number, start),
            members=tuple((label, number) for label in range(start, min(start + batch_size, classes))),
        )
        for number in range(ipc)
        for start in range(0, classes, batch_size)
    ]


def grouped(units: Sequence[Unit], group_size: int) -> list[Group]:
    """Divide the units into groups of `group_size`, in order."""
    starts = range(0, len(units), group_size)
    return [Group(index=n, units=tuple(units[at : at + group_size])) for n, at in enumerate(starts)]
