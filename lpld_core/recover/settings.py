"""Settings of a recovery run: method, sizes and schedule, the papers' presets, and the plan that follows.

A unit is a set of images that share statistics; a group is the units of one forward pass. Every group can
be made on its own, so processes can share the work and a killed run resumes at the next group. Nothing here
needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.pieces import require_listable

OptimisedMethod = Literal["lpld", "sre2l", "cda"]
Method = Literal["lpld", "sre2l", "cda", "rded"]
StatisticsKind = Literal["class", "global"]
RollDirection = Literal["both", "forward"]
Scoring = Literal["whole", "padded"]
ImageFormat = Literal["jpeg", "png"]
PresetName = Literal["imagenet1k", "tiny", "imagenet21k"]
FIRST_LAYER_WEIGHT = 10.0
"""The papers weigh the distance at the first BatchNorm layer ten times."""
_LARGEST_CROP = 1.0
_SMALL_SIDE = 64
_PASS_IMAGES = 100
"""Images in one forward pass where nobody says otherwise: enough to keep a processor busy."""


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """How images are written: format, and quality where it has one (JPEG)."""

    format: ImageFormat = "jpeg"
    quality: int = 95

    def __post_init__(self) -> None:
        _require_one_of(self.format, ImageFormat, "format")
        if not 1 <= self.quality <= 100:
            raise _wrong("quality", "1 to 100", self.quality)


@dataclass(frozen=True, kw_only=True)
class ViewRanges:
    """What views are drawn from.

    smallest_crop: least share of the image's area in a crop (the largest is 1).
    ratio: least and greatest width / height of a crop.
    flip_probability: of mirroring left to right. roll: greatest cyclic shift per axis in pixels.
    roll_direction: "both", shifts from -roll to roll; or "forward", from 0 to roll (down and right).
    """

    smallest_crop: float = 0.08
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip_probability: float = 0.5
    roll: int = 32
    roll_direction: RollDirection = "both"


@dataclass(frozen=True, kw_only=True)
class RecoverSettings:
    """Settings of an optimised recovery (lpld, sre2l, cda).

    ipc: images per class. statistics_kind: which statistics the BatchNorm loss matches, "class" or
    "global"; sre2l and cda know only global ones, lpld with "global" is the paper's "+C" ablation.
    batch_size: classes in one batch of sre2l and cda, which share statistics and a view.
    class_group: batches (for lpld: classes) that share a forward pass; changes no image beyond rounding.
    roll, roll_direction: see ViewRanges. files: how the images are saved.
    """

    method: OptimisedMethod
    ipc: int
    iterations: int
    learning_rate: float
    alpha: float
    roll: int
    size: tuple[int, int]
    statistics_kind: StatisticsKind = "class"
    class_group: int = 10
    batch_size: int = 100
    smallest_crop: float = 0.08
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip_probability: float = 0.5
    first_layer_weight: float = FIRST_LAYER_WEIGHT
    betas: tuple[float, float] = (0.5, 0.9)
    seed: int = 0
    roll_direction: RollDirection = "both"
    files: ImageFiles = field(default_factory=ImageFiles)

    def __post_init__(self) -> None:
        _require_one_of(self.method, OptimisedMethod, "method")
        _require_one_of(self.statistics_kind, StatisticsKind, "statistics_kind")
        _require_one_of(self.roll_direction, RollDirection, "roll_direction")
        if self.method != "lpld" and self.statistics_kind != "global":
            raise _wrong("statistics_kind", f"global, for {self.method} mixes classes", self.statistics_kind)
        _require_at_least(self, 1, "ipc", "iterations", "class_group", "batch_size")
        _require_at_least(self, 0, "alpha", "roll", "seed", "flip_probability", "first_layer_weight")
        _require_crop(self.smallest_crop)
        if not 0 < self.learning_rate < math.inf:
            raise _wrong("learning_rate", "above 0", self.learning_rate)

    def groups(self, classes: int) -> list[Group]:
        """Return the plan of a run over `classes` classes."""
        if self.method == "lpld":
            return grouped(class_units(classes, self.ipc), self.class_group)
        return grouped(mixed_units(classes, self.ipc, self.batch_size), self.class_group)

    def view_ranges(self, iteration: int) -> ViewRanges:
        """Return what views are drawn from; cda lets the smallest crop shrink along a cosine."""
        smallest = self.smallest_crop
        if self.method == "cda":
            smallest += (_LARGEST_CROP - smallest) * self._cosine(iteration)
        return ViewRanges(
            smallest_crop=smallest,
            ratio=self.crop_ratio,
            flip_probability=self.flip_probability,
            roll=self.roll,
            roll_direction=self.roll_direction,
        )

    def rate(self, iteration: int) -> float:
        """Return the learning rate of an iteration: a cosine from the full rate to 0."""
        return self.learning_rate * self._cosine(iteration)

    def _cosine(self, iteration: int) -> float:
        """Fall from 1 at the first iteration to 0 after the last."""
        return 0.5 * (1 + math.cos(math.pi * iteration / self.iterations))


@dataclass(frozen=True, kw_only=True)
class RdedSettings:
    """Settings of rded: images are stitched from the most telling crops of real ones.

    candidates: real images looked at per class. crops: random crops tried of each.
    tiles: an image is tiles x tiles crops. smallest_crop: least area share of a crop.
    scoring: how the teacher sees a crop: "whole", as large as its images are, and only what is kept is
    shrunk to a tile; or "padded", as the tile it will be in the middle of a mean-coloured image.
    files: how the images are saved.
    """

    ipc: int
    size: tuple[int, int]
    candidates: int = 300
    crops: int = 5
    tiles: int = 2
    smallest_crop: float = 0.08
    seed: int = 0
    scoring: Scoring = "whole"
    files: ImageFiles = field(default_factory=ImageFiles)

    def __post_init__(self) -> None:
        _require_one_of(self.scoring, Scoring, "scoring")
        _require_at_least(self, 1, "ipc", "candidates", "crops", "tiles")
        _require_at_least(self, 0, "seed")
        _require_crop(self.smallest_crop)
        if self.size[0] % self.tiles or self.size[1] % self.tiles:
            raise _wrong("size", f"a multiple of {self.tiles}", f"{self.size[0]} x {self.size[1]}")

    @property
    def method(self) -> Method:
        return "rded"

    @property
    def tile(self) -> tuple[int, int]:
        """Height and width of a crop in an image."""
        return self.size[0] // self.tiles, self.size[1] // self.tiles

    def groups(self, classes: int) -> list[Group]:
        """Return the plan: every class on its own."""
        return grouped(class_units(classes, self.ipc), 1)


Settings = RecoverSettings | RdedSettings


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What the papers' programs use for one data set; names as in RecoverSettings."""

    iterations: int
    learning_rate: float
    alpha: float
    roll: int
    roll_direction: RollDirection


RECOVERY_PRESETS: dict[PresetName, Preset] = {
    "imagenet1k": Preset(iterations=4000, learning_rate=0.25, alpha=0.01, roll=32, roll_direction="forward"),
    "tiny": Preset(iterations=4000, learning_rate=0.1, alpha=0.05, roll=4, roll_direction="both"),
    "imagenet21k": Preset(iterations=2000, learning_rate=0.05, alpha=0.25, roll=32, roll_direction="forward"),
}


def method_settings(
    method: Method,
    *,
    size: tuple[int, int],
    classes: int,
    ipc: int,
    preset: PresetName | None = None,
    **given: Any,
) -> Settings:
    """Return the settings of a method: what is given, and the papers' values for the rest.

    preset: whose values; by the image size where None. given: fields of RecoverSettings and RdedSettings;
    those that the method does not have are left aside, so that one list may serve several methods.
    """
    kind = RdedSettings if method == "rded" else RecoverSettings
    known = {entry.name for entry in fields(kind)}
    chosen = {name: value for name, value in given.items() if name in known}
    if method == "rded":
        return RdedSettings(ipc=ipc, size=size, **{"scoring": "padded", **chosen})
    paper = RECOVERY_PRESETS[preset or ("tiny" if max(size) <= _SMALL_SIDE else "imagenet1k")]
    by_class = method == "lpld"
    batch_size = chosen.get("batch_size", RecoverSettings.batch_size)
    usual = {
        **vars(paper),
        "statistics_kind": "class" if by_class else "global",
        "class_group": fitting_group(ipc if by_class else min(batch_size, classes)),
    }
    if method == "cda":
        # Its programs roll forward on every data set.
        usual["roll_direction"] = "forward"
    return RecoverSettings(method=method, ipc=ipc, size=size, **{**usual, **chosen})


def fitting_group(unit_images: int) -> int:
    """Return how many units of so many images fill a forward pass of usual size."""
    return max(1, _PASS_IMAGES // unit_images)


def _wrong(name: str, expected: str, got: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"recovery setting '{name}' is wrong", expected=expected, got=got)


def _require_one_of(value: str, choices: Any, name: str) -> None:
    """Refuse what a Literal type does not list; files and command lines are not type-checked."""
    if value not in get_args(choices):
        raise _wrong(name, f"one of {', '.join(get_args(choices))}", value)


def _require_at_least(settings: object, least: int, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        # Written so that NaN is refused too.
        if not least <= value < math.inf:
            raise _wrong(name, f"at least {least}", value)


def _require_crop(smallest: float) -> None:
    if not 0 < smallest <= _LARGEST_CROP:
        raise _wrong("smallest_crop", "above 0, at most 1", smallest)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Images whose BatchNorm statistics are matched together and that share a view.

    key: names the unit's random draws. members: (class, number within the class) of each image.
    """

    key: tuple[int, int]
    members: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Units that go through the teacher in one forward pass."""

    index: int
    units: tuple[Unit, ...]

    @property
    def members(self) -> tuple[tuple[int, int], ...]:
        """(class, number) of all images, unit after unit."""
        return tuple(member for unit in self.units for member in unit.members)

    @property
    def classes(self) -> tuple[int, ...]:
        """Classes with an image in this group, in order."""
        return tuple(sorted({label for label, _ in self.members}))


def class_units(classes: int, ipc: int) -> list[Unit]:
    """One unit per class with all its images (lpld)."""
    _require_listable(classes, ipc)
    return [
        Unit(key=(label, 0), members=tuple((label, number) for number in range(ipc)))
        for label in range(classes)
    ]


def mixed_units(classes: int, ipc: int, batch_size: int) -> list[Unit]:
    """Units of one image from each of `batch_size` neighbouring classes (sre2l)."""
    _require_listable(classes, ipc)
    return [
        Unit(
            key=(number, start),
            members=tuple((label, number) for label in range(start, min(start + batch_size, classes))),
        )
        for number in range(ipc)
        for start in range(0, classes, batch_size)
    ]


def _require_listable(classes: int, ipc: int) -> None:
    require_listable(classes * ipc, what="images", hint="recover fewer images per class (--ipc)")


def grouped(units: Sequence[Unit], group_size: int) -> list[Group]:
    """Cut the units into groups of `group_size`, in order."""
    return [
        Group(index=number, units=tuple(units[start : start + group_size]))
        for number, start in enumerate(range(0, len(units), group_size))
    ]
