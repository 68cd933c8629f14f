"""What squeezing is told: which views of the images, how many, and how moments are gathered.

Nothing here needs torch, so the command line can list choices and defaults without loading it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from lpld_labels.errors import InvalidArgumentError

Update = Literal["exact", "ema"]
Views = Literal["centre", "crop"]


@dataclass(frozen=True, kw_only=True)
class SqueezeSettings:
    """Settings of a squeeze.

    views: "centre", what evaluation shows; or "crop", a random crop and flip as in training, drawn
    anew in every pass. passes: looks at every image. update: "exact", the moments over all views of a
    class; or "ema", the paper's moving average over batches. momentum: of the moving average.
    batch_size: images in a forward pass; exact moments do not depend on it. seed: of order and views.
    """

    views: Views = "centre"
    passes: int = 1
    update: Update = "exact"
    momentum: float = 0.1
    batch_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, choices in (("views", self.views, Views), ("update", self.update, Update)):
            if value not in get_args(choices):
                raise _wrong(name, " or ".join(get_args(choices)), value)
        for name, count in (("passes", self.passes), ("batch_size", self.batch_size)):
            if count < 1:
                raise _wrong(name, "at least 1", count)
        if not 0 < self.momentum < 1:
            raise _wrong("momentum", "between 0 and 1", self.momentum)
        if self.passes > 1 and self.views == "centre" and self.update == "exact":
            raise _wrong("passes", "1, for a centre looks the same every time", self.passes)


def _wrong(name: str, expected: str, got: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"'{name}' is wrong", expected=expected, got=got)
