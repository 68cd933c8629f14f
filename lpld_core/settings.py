"""Settings that several commands share: views, teachers, and parts of a job. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.limits import MAX_BATCH_SIZE
from lpld_labels.settings import Setting, check_settings

if TYPE_CHECKING:
    from lpld_labels.format.manifest import Augmentation

DEFAULT_WEIGHTS = "DEFAULT"
"""The makers' published weights."""
RANDOM_WEIGHTS = "random"
"""Fresh weights, always the same: for timing and tests."""


@dataclass(frozen=True, kw_only=True)
class TeacherChoice:
    """Arguments of `load_teacher`."""

    name: str
    weights: str = DEFAULT_WEIGHTS
    input_size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


Mix = Literal["none", "cutmix", "mixup"]
Resize = Literal["torch", "pil"]
MIX_ALPHAS: Mapping[str, float | None] = {"none": None, "cutmix": 1.0, "mixup": 0.8}
"""Both parameters of the Beta distribution of mixing strengths."""
CROP_RATIO = (3 / 4, 4 / 3)
FLIP_PROBABILITY = 0.5


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """Augmentation of views."""

    batch_size: Annotated[
        int, Setting("Views mixed, labelled and stored together.", ge=1, le=MAX_BATCH_SIZE)
    ] = 128
    crop_scale: Annotated[tuple[float, float], Setting("Area share of random crops.")] = (0.08, 1.0)
    flip: Annotated[bool, Setting("Mirror every other view.")] = True
    mix: Annotated[Mix, Setting("Blend views with others of their batch.")] = "none"
    cutout_fraction: Annotated[float | None, Setting("Paint over a box with this share of the side.")] = None
    patch_grid: Annotated[int | None, Setting("Shuffle N x N patches (RDED).", ge=1, le=15)] = None
    resize: Annotated[Resize, Setting("Resize code.")] = "torch"

    def __post_init__(self) -> None:
        check_settings(self)

    def augmentation(self, size: tuple[int, int]) -> Augmentation:
        """Return what a pool records, for views of this height and width."""
        from lpld_labels.format.manifest import Augmentation  # imports Arrow, which is slow

        return Augmentation(
            output_height=size[0],
            output_width=size[1],
            resize=self.resize,
            crop_scale=self.crop_scale,
            crop_ratio=CROP_RATIO,
            flip_probability=FLIP_PROBABILITY if self.flip else None,
            mix=self.mix,
            mix_alpha=MIX_ALPHAS[self.mix],
            cutout_fraction=self.cutout_fraction,
            patch_grid=self.patch_grid,
        )


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Part:
    """Part `number` (from 1) of `of` equal parts."""

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise InvalidArgumentError(
                "part is out of range", expected="I/N with 1 <= I <= N", got=f"{self.number}/{self.of}"
            )

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return this part of a list: every `of`-th item."""
        return items[self.number - 1 :: self.of]
