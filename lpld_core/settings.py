"""Settings of squeeze and build, and settings shared by several commands. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.limits import MAX_BATCH_SIZE, MAX_INDEX, MAX_SEED
from lpld_labels.settings import Setting, check_settings, wrong_setting

if TYPE_CHECKING:
    from lpld_labels.format.manifest import Augmentation

DEFAULT_WEIGHTS = "DEFAULT"
"""The published weights."""
RANDOM_WEIGHTS = "random"
"""Random weights from a fixed seed, for timing and tests."""

ImageCache = Annotated[
    Path | None, Setting("Directory for decoded images, shared by processes and runs.  [default: in memory]")
]


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
"""Mixing strengths are drawn from Beta(alpha, alpha)."""
CROP_RATIO = (3 / 4, 4 / 3)
FLIP_PROBABILITY = 0.5


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """Augmentation of views."""

    batch_size: Annotated[int, Setting("Number of views in a label batch.", ge=1, le=MAX_BATCH_SIZE)] = 128
    crop_scale: Annotated[
        tuple[float, float], Setting("Smallest and largest area of a crop, as shares of the image.")
    ] = (0.08, 1.0)
    flip: Annotated[bool, Setting("Mirror half of the views, at random.")] = True
    mix: Annotated[Mix, Setting("Mix each view with another view of its batch.")] = "none"
    cutout_fraction: Annotated[float | None, Setting("Cut-out side, as a share of the view's side.")] = None
    patch_grid: Annotated[int | None, Setting("Shuffle N x N patches per view (RDED).", ge=1, le=15)] = None
    resize: Annotated[Resize, Setting("Resize as PyTorch or as Pillow does.")] = "torch"

    def __post_init__(self) -> None:
        check_settings(self)

    def augmentation(self, size: tuple[int, int]) -> Augmentation:
        """Return the augmentation that a pool records, for views of this height and width."""
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
    """A part of a job that several machines share. number: counted from 1. of: number of parts."""

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise InvalidArgumentError(
                "part is out of range", expected="I/N with 1 <= I <= N", got=f"{self.number}/{self.of}"
            )

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return the items of this part: every `of`-th item of a list."""
        return items[self.number - 1 :: self.of]


Update = Literal["exact", "ema"]
SqueezeViews = Literal["centre", "crop"]


@dataclass(frozen=True, kw_only=True)
class SqueezeSettings:
    """Which views the teacher sees, and how means and variances are computed."""

    views: Annotated[SqueezeViews, Setting("Centre crops, or the paper's random crops and flips.")] = "centre"
    passes: Annotated[int, Setting("Number of passes over the images, each with new views.", ge=1)] = 1
    update: Annotated[Update, Setting("Exact mean and variance, or the paper's moving average.")] = "exact"
    momentum: Annotated[float, Setting("Weight of a batch in the average.", option=False, gt=0, lt=1)] = 0.1
    batch_size: Annotated[int, Setting("Images per forward pass. Affects results of ema only.", ge=1)] = 256
    seed: Annotated[int, Setting("Seed of the images' order and views.", ge=0, le=MAX_SEED)] = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.passes > 1 and self.views == "centre" and self.update == "exact":
            raise wrong_setting("passes", "1, because centre views are the same in every pass", self.passes)

    @property
    def average(self) -> float | None:
        """The momentum of the moving average; None for exact moments."""
        return self.momentum if self.update == "ema" else None


Precision = Literal["off", "bf16", "fp16"]
Replayer = Literal["sre2l", "lpld"]
PoolViews = Literal["stored", "drawn"]


@dataclass(frozen=True, kw_only=True)
class LabelSettings(ViewSettings):
    """How to label an image folder. The defaults are the paper's ImageNet-1K settings, but without mixing."""

    epochs: Annotated[int, Setting("Number of views per image before pruning.", ge=1, le=MAX_INDEX + 1)] = 300
    ratio: Annotated[float, Setting("Label only the batches that pruning to 1/RATIO keeps.", ge=1)] = 1.0
    seed: Annotated[int, Setting("Seed of all views and of pruning.", ge=0, le=MAX_SEED)] = 0
    replayable_by: Annotated[
        Replayer | None,
        Setting(
            "Use this program's image order, and resize with Pillow as it does, so that its trainer replays "
            "the exported pool exactly."
        ),
    ] = None

    fewer_classes: Annotated[bool, Setting("Allow fewer class folders than the teacher has classes.")] = False
    codec: Annotated[str, Setting("Codec: f16, f16:plain, f32, int8, topk:50 ... (klt: see encode).")] = "f16"
    views: Annotated[
        PoolViews, Setting("Store the views, or let readers draw them from the seed (a smaller pool).")
    ] = "stored"
    pack: Annotated[bool, Setting("Also store the images in the pool, as copy --images does.")] = False

    device: Annotated[str, Setting("Device: cpu, cuda, cuda:1, mps ...")] = "cpu"
    amp: Annotated[Precision, Setting("Mixed precision: faster on GPUs, but not bit-identical.")] = "off"
    threads: Annotated[
        int | None,
        Setting("Number of CPU threads per process.  [default: all CPUs, divided among processes]", ge=1),
    ] = None
    image_cache: ImageCache = None
    part: Annotated[Part | None, Setting("Label only part I of N; the last to finish publishes.")] = None


@dataclass(frozen=True, kw_only=True)
class BuildSettings(LabelSettings):
    """Label settings and teachers. teachers: empty if the caller passes loaded teachers."""

    teachers: tuple[TeacherChoice, ...] = ()
    workers: Annotated[int, Setting("Number of threads that prepare pixels.", option=False, ge=1)] = 1
