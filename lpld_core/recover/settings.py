"""What a recovery run is told: method, sizes and schedule, with the papers' settings as presets.

Nothing here needs torch, so the command line can list methods and presets without loading it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lpld_core.recover.plan import Group, class_units, grouped, mixed_units
from lpld_labels.errors import InvalidArgumentError

OPTIMISED_METHODS = ("lpld", "sre2l", "cda")
METHODS = (*OPTIMISED_METHODS, "rded")
STATISTICS_KINDS = ("class", "global")
IMAGE_FORMATS = ("jpeg", "png")
FIRST_LAYER_WEIGHT = 10.0
"""The papers weigh the distance at the first BatchNorm layer ten times."""
_LARGEST_CROP = 1.0
_PASS_IMAGES = 100
"""Images in one forward pass where nobody says otherwise: enough to keep a processor busy."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Iterations, learning rate, weight of the BatchNorm loss and roll of one of the paper's data sets."""

    iterations: int
    learning_rate: float
    alpha: float
    roll: int


PRESETS = {
    "imagenet1k": Preset(iterations=4000, learning_rate=0.25, alpha=0.01, roll=32),
    "tiny": Preset(iterations=4000, learning_rate=0.1, alpha=0.05, roll=4),
    "imagenet21k": Preset(iterations=2000, learning_rate=0.05, alpha=0.25, roll=32),
}


@dataclass(frozen=True, kw_only=True)
class ViewRanges:
    """What views are drawn from.

    smallest_crop: least share of the image's area in a crop (the largest is 1).
    ratio: least and greatest width / height of a crop.
    flip_probability: of mirroring left to right. roll: greatest cyclic shift per axis in pixels.
    """

    smallest_crop: float = 0.08
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip_probability: float = 0.5
    roll: int = 32


@dataclass(frozen=True, kw_only=True)
class RecoverSettings:
    """Settings of an optimised recovery (lpld, sre2l, cda).

    ipc: images per class. statistics_kind: which statistics the BatchNorm loss matches, "class" or
    "global"; sre2l and cda know only global ones, lpld with "global" is the paper's "+C" ablation.
    batch_size: classes in one batch of sre2l and cda, which share statistics and a view.
    class_group: batches (for lpld: classes) that share a forward pass; changes no image beyond rounding.
    """

    method: str
    ipc: int
    iterations: int
    learning_rate: float
    alpha: float
    roll: int
    size: tuple[int, int]
    statistics_kind: str = "class"
    class_group: int = 10
    batch_size: int = 100
    smallest_crop: float = 0.08
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip_probability: float = 0.5
    first_layer_weight: float = FIRST_LAYER_WEIGHT
    betas: tuple[float, float] = (0.5, 0.9)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in OPTIMISED_METHODS:
            raise _wrong("method", f"one of {', '.join(OPTIMISED_METHODS)}", self.method)
        if self.statistics_kind not in STATISTICS_KINDS:
            raise _wrong("statistics_kind", f"one of {', '.join(STATISTICS_KINDS)}", self.statistics_kind)
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
    """

    ipc: int
    size: tuple[int, int]
    candidates: int = 300
    crops: int = 5
    tiles: int = 2
    smallest_crop: float = 0.08
    seed: int = 0

    def __post_init__(self) -> None:
        _require_at_least(self, 1, "ipc", "candidates", "crops", "tiles")
        _require_at_least(self, 0, "seed")
        _require_crop(self.smallest_crop)
        if self.size[0] % self.tiles or self.size[1] % self.tiles:
            raise _wrong("size", f"a multiple of {self.tiles}", f"{self.size[0]} x {self.size[1]}")

    @property
    def method(self) -> str:
        return "rded"

    def groups(self, classes: int) -> list[Group]:
        """Return the plan: every class on its own."""
        return grouped(class_units(classes, self.ipc), 1)


def fitting_group(unit_images: int) -> int:
    """Return how many units of so many images fill a forward pass of usual size."""
    return max(1, _PASS_IMAGES // unit_images)


def _wrong(name: str, expected: str, got: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"recovery setting '{name}' is wrong", expected=expected, got=got)


def _require_at_least(settings: object, least: int, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        # Written so that NaN is refused too.
        if not least <= value < math.inf:
            raise _wrong(name, f"at least {least}", value)


def _require_crop(smallest: float) -> None:
    if not 0 < smallest <= _LARGEST_CROP:
        raise _wrong("smallest_crop", "above 0, at most 1", smallest)
