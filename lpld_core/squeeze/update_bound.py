"""How many batches a moving average of class statistics needs (the paper's equation 6, appendix A).

Exact moments need one look at every image. A moving average needs every class to turn up in enough
batches, with some certainty, and enough of those updates to forget where it started.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lpld_labels.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class UpdateBound:
    """Batches needed for stable class statistics.

    appearance: probability that the rarest class is in a batch.
    chernoff: batches until every class has turned up about as often as expected.
    convergence: batches until the moving average has forgotten its start.
    available: batches in one pass over the data.
    """

    appearance: float
    chernoff: float
    convergence: float
    available: int

    @property
    def required(self) -> int:
        return math.ceil(max(self.chernoff, self.convergence))

    @property
    def required_passes(self) -> int:
        """Passes over the data that have the batches required."""
        return math.ceil(self.required / self.available)

    @property
    def one_pass_suffices(self) -> bool:
        return self.available >= self.required


def update_bound(
    *,
    smallest_class: int,
    images: int,
    batch_size: int,
    momentum: float = 0.1,
    failure: float = 0.05,
    deviation: float = 0.2,
    start_error: float = 1.0,
    tolerance: float = 0.01,
) -> UpdateBound:
    """Return the bound on batches for a data set whose rarest class has `smallest_class` images.

    failure: accepted probability T that the guarantee does not hold. deviation: accepted relative
    shortfall (delta) in how often a class turns up. start_error: bound C on the error at the start.
    tolerance: accepted error (tau) at the end.
    """
    if not 0 < smallest_class <= images or batch_size < 1:
        raise InvalidArgumentError(
            "no bound for this data",
            expected="every class with an image and a batch size >= 1",
            got=f"{smallest_class} of {images} images in the smallest class, batch size {batch_size}",
        )
    for name, value in (("momentum", momentum), ("failure", failure), ("deviation", deviation)):
        if not 0 < value < 1:
            raise InvalidArgumentError(f"'{name}' is out of range", expected="between 0 and 1", got=value)
    appearance = 1 - (1 - smallest_class / images) ** batch_size
    return UpdateBound(
        appearance=appearance,
        chernoff=-2 * math.log(failure / 2) / (deviation**2 * appearance),
        convergence=math.log(start_error / tolerance) / ((1 - deviation) * momentum * appearance),
        available=math.ceil(images / batch_size),
    )
