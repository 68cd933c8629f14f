"""Between logits and probabilities, without overflow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

SMALLEST = np.float32(2.0**-24)
"""Probabilities below the smallest half count as this much, so that each has a logarithm."""


def softmax(logits: FloatArray) -> FloatArray:
    """Return probabilities [B, C] of float32 logits [B, C]."""
    weights: FloatArray = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def log_probabilities(probabilities: FloatArray) -> FloatArray:
    """Return the logarithms [B, C] of float32 probabilities [B, C]: logits that give them back."""
    return np.asarray(np.log(np.maximum(probabilities, SMALLEST)), np.float32)
