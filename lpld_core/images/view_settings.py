"""How views are made of images, as build and the training of teachers are told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import Augmentation

Mix = Literal["none", "cutmix", "mixup"]
Resize = Literal["torch", "pil"]
MIX_ALPHAS: Mapping[str, float | None] = {"none": None, "cutmix": 1.0, "mixup": 0.8}
"""Both parameters of the Beta distribution that mixing strengths are drawn from."""
FLIP_PROBABILITY = 0.5


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """Random crops of images, and what else is done to them.

    batch_size: how many views are mixed, labelled and stored together.
    crop_scale: area share of random crops. flip: mirror every other view.
    mix: blend views with others of their batch. cutout_fraction: side of the box that is painted over.
    patch_grid: shuffle this many patches a side (RDED). resize: which code resizes.
    """

    batch_size: int = 128
    crop_scale: tuple[float, float] = (0.08, 1.0)
    flip: bool = True
    mix: Mix = "none"
    cutout_fraction: float | None = None
    patch_grid: int | None = None
    resize: Resize = "torch"

    def augmentation(self, size: tuple[int, int]) -> Augmentation:
        """Return what a pool records, for views of this height and width."""
        if self.mix not in MIX_ALPHAS:
            raise InvalidArgumentError(
                "unknown mix", expected=f"one of {', '.join(MIX_ALPHAS)}", got=self.mix
            )
        return Augmentation(
            output_height=size[0],
            output_width=size[1],
            resize=self.resize,
            crop_scale=self.crop_scale,
            crop_ratio=(3 / 4, 4 / 3),
            flip_probability=FLIP_PROBABILITY if self.flip else None,
            mix=self.mix,
            mix_alpha=MIX_ALPHAS[self.mix],
            cutout_fraction=self.cutout_fraction,
            patch_grid=self.patch_grid,
        )
