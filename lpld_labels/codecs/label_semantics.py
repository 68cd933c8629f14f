"""The meaning of stored labels: kinds, zero probabilities, temperature, and normalisation of pixels.

logits         z before softmax. At temperature T they mean softmax(z / T).
probabilities  p after softmax. At temperature T they mean p ** (1 / T), divided by their sum. This equals
               softmax(z / T) of the original logits, because log p is z up to a shift of the row.

A probability of 0 stays 0 at every temperature, as in Fast Knowledge Distillation, which stores zeros in hard
and top-k labels. Its logit is minus infinity, and its term in KL(p || q) is 0. At T = 20, (.9, .1, 0, ...)
becomes (.527, .473, 0, ...). If a small number replaced 0, empty classes would get most of the mass.

Functions accept NumPy arrays and torch tensors, with equal results up to float32 rounding; torch is not
imported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import PoolHeader, require_normalisation

if TYPE_CHECKING:
    import torch

FloatArray = npt.NDArray[np.float32]
Labels = TypeVar("Labels", FloatArray, "torch.Tensor")  # float32 [B, C]

SMALLEST = 2.0**-24  # The smallest float16 above 0.


def as_logits(labels: Labels, kind: str) -> Labels:
    """Return logits [B, C] for labels of the given kind. A probability of 0 becomes minus infinity."""
    if kind == "logits":
        return labels
    if isinstance(labels, np.ndarray):
        with np.errstate(divide="ignore"):
            return np.log(labels)
    return labels.log()


def as_finite_logits(labels: Labels, kind: str) -> Labels:
    """Like `as_logits`, but raise 0 to SMALLEST. Never soften these: at T = 20, 0 gets 43 % of 1's weight."""
    if kind == "logits":
        return labels
    if isinstance(labels, np.ndarray):
        return np.asarray(np.log(np.maximum(labels, np.float32(SMALLEST))), np.float32)
    return labels.clamp_min(SMALLEST).log()


def softmax(logits: Labels) -> Labels:
    """Return probabilities [B, C] of logits [B, C], without overflow."""
    if isinstance(logits, np.ndarray):
        weights: FloatArray = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return weights
    return logits.softmax(dim=1)


def softened(labels: Labels, kind: str, temperature: float) -> Labels:
    """Return the probabilities [B, C] at a temperature for labels of the given kind."""
    check_temperature(temperature)
    return softmax(as_logits(labels, kind) / temperature)


def check_temperature(temperature: float) -> None:
    """Refuse a temperature that is not a finite number above 0."""
    if not (temperature > 0 and math.isfinite(temperature)):
        raise InvalidArgumentError("temperature is out of range", expected="a number > 0", got=temperature)


def find_normalisation(
    header: PoolHeader, mean: Sequence[float] | None, std: Sequence[float] | None, *, where: object
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the given mean and std, or else those that all teachers share. Raise an error if unknown."""
    if mean is not None and std is not None:
        require_normalisation(mean, std)
        return tuple(mean), tuple(std)
    known = {(teacher.mean, teacher.std) for teacher in header.teachers}
    found = known.pop() if len(known) == 1 else (None, None)
    if mean is not None or std is not None or found[0] is None or found[1] is None:
        raise InvalidArgumentError(
            "the normalisation is not known",
            where=where,
            expected="mean and std, recorded and equal for all teachers",
            got=f"teachers {', '.join(teacher.name for teacher in header.teachers) or 'unknown'}",
            hint="give both mean and std",
        )
    return found[0], found[1]
