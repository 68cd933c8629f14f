"""What a stored label means at a temperature."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.label_semantics import softened
from lpld_labels.format.records import LabelArray

Doubles = npt.NDArray[np.float64]


def probabilities(labels: LabelArray, kind: str, temperature: float = 1.0) -> Doubles:
    """Return the probabilities float64 [B, C] that labels [B, C] of a kind mean at a temperature.

    A probability of 0 stays 0 at every temperature. Rows that are not finite give rows of NaN.
    """
    values = np.asarray(labels, np.float32)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weights = softened(values, kind, temperature).astype(np.float64)
    weights[~np.isfinite(values).all(axis=1)] = np.nan
    return weights


def entropy(shares: Doubles) -> Doubles:
    """Return the entropy of probabilities [B, C] in bits: float64 [B]; 0 log 0 is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(shares > 0, shares * np.log2(shares), 0.0)
    terms[np.isnan(shares)] = np.nan
    return np.asarray(np.abs(terms.sum(axis=1)))
