"""What changes while training goes on, as pure functions of how far it has come."""

from __future__ import annotations

import math

from lpld_core.train.settings import TrainSettings

SMOOTHING = 2.0
"""How much slower the smoothed cosine falls: after the whole budget it has come half way (RDED)."""


def rate_factor(settings: TrainSettings, epoch: float) -> float:
    """Return what to multiply the learning rate by.

    epoch: passes over the images so far, with fractions: 2.5 is half way through the third.
    """
    if settings.rate_steps == "epoch":
        epoch = math.floor(epoch)
    warm_up = settings.warmup_epochs
    if epoch < warm_up:
        return settings.warmup_from + (1 - settings.warmup_from) * epoch / warm_up
    if settings.schedule == "constant":
        return 1.0
    progress = (epoch - warm_up) / max(settings.epochs - warm_up, 1e-9)
    if settings.schedule == "smoothed-cosine":
        progress /= SMOOTHING
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def temperature_in(settings: TrainSettings, epoch: int) -> float:
    """Return the temperature of the labels in an epoch, counted from 0.

    LPQLD's programs count epochs from 1 here: the first fall comes one epoch early, and the cosine is at
    its minimum in the last epoch, not after it.
    """
    start, end = settings.temperature, settings.temperature_minimum
    if settings.temperature_schedule == "step":
        falls = (epoch + 1) // settings.temperature_step_epochs
        return max(start * settings.temperature_factor**falls, end)
    if settings.temperature_schedule == "cosine":
        return end + 0.5 * (start - end) * (1 + math.cos(math.pi * (epoch + 1) / settings.epochs))
    return start
