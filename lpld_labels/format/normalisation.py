"""The normalisation of pixels, (x / 255 - mean) / std per channel: which numbers make one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lpld_labels.errors import InvalidArgumentError


def require_normalisation(mean: Sequence[float], std: Sequence[float], *, where: object = "") -> None:
    """Refuse a mean or std that pixels cannot be normalised by, and no manifest may name."""
    for name, values, expected in (
        ("mean", mean, "3 finite numbers"),
        ("std", std, "3 finite numbers above 0"),
    ):
        sound = len(values) == 3 and all(math.isfinite(value) for value in values)
        if not sound or (values is std and min(values) <= 0):
            raise InvalidArgumentError(f"{name} is wrong", where=where, expected=expected, got=list(values))
