"""Learning-rate schedules: a factor as a pure function of how far training has come."""

from __future__ import annotations

import math

from lpld_core.training.presets import TrainRecipe

SMOOTHING = 2.0
"""How much slower the smoothed cosine falls: after the whole budget it has come half way (RDED)."""


def rate_factor(recipe: TrainRecipe, epoch: float) -> float:
    """Return what to multiply the learning rate by.

    epoch: passes over the images so far, with fractions: 2.5 is half way through the third.
    """
    warm_up = recipe.warm_up_epochs
    if epoch < warm_up:
        return recipe.warm_up_from + (1 - recipe.warm_up_from) * epoch / warm_up
    if recipe.schedule == "constant":
        return 1.0
    progress = (epoch - warm_up) / max(recipe.epochs - warm_up, 1e-9)
    if recipe.schedule == "smoothed-cosine":
        progress /= SMOOTHING
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
