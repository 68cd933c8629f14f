"""Settings of a squeeze. Imports no torch, so the command line starts quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from lpld_labels.format.limits import MAX_SEED
from lpld_labels.settings import Setting, check_settings, wrong_setting

Update = Literal["exact", "ema"]
Views = Literal["centre", "crop"]


@dataclass(frozen=True, kw_only=True)
class SqueezeSettings:
    """Which views of the images are shown, and how their moments are computed."""

    views: Annotated[
        Views,
        Setting(
            "What is shown of an image: its centre, or a random crop and flip as the paper's programs do."
        ),
    ] = "centre"
    passes: Annotated[int, Setting("Looks at every image; each has views of its own.", ge=1)] = 1
    update: Annotated[
        Update, Setting("Moments over all views, or the paper's moving average over batches.")
    ] = "exact"
    momentum: Annotated[float, Setting("Of the moving average.", option=False, gt=0, lt=1)] = 0.1
    batch_size: Annotated[
        int, Setting("Images in a forward pass; exact moments do not depend on it.", ge=1)
    ] = 256
    seed: Annotated[int, Setting("Order and views of the images.", ge=0, le=MAX_SEED)] = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.passes > 1 and self.views == "centre" and self.update == "exact":
            raise wrong_setting("passes", "1, for a centre looks the same every time", self.passes)

    @property
    def average(self) -> float | None:
        """The momentum of the moving average; None for exact moments."""
        return self.momentum if self.update == "ema" else None
