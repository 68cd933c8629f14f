"""The two published ways to turn top-k labels into probabilities (Fast Knowledge Distillation).

smoothing          missing classes share the tail's mass evenly;
re-normalisation   missing classes get nothing, the kept ones share everything.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.topk import SparseLabels
from lpld_labels.errors import InvalidArgumentError

FloatArray = npt.NDArray[np.float32]


def marginal_smoothing(
    sparse: SparseLabels, *, classes: int, temperature: float = 1.0, label_kind: str = "logits"
) -> FloatArray:
    """Return probabilities [B, classes] at a temperature; exact mass in the tail at temperature 1."""
    if sparse.tail is None and sparse.values.shape[1] < classes:
        raise InvalidArgumentError(
            "these top-k labels were stored without a tail",
            expected="a tail level for marginal smoothing",
            hint="use marginal re-normalisation",
        )
    # With every class kept there is no tail to speak of.
    level = np.zeros(len(sparse.values)) if sparse.tail is None else sparse.tail.astype(np.float64)
    return _spread(sparse, level, classes=classes, temperature=temperature, label_kind=label_kind)


def marginal_renormalisation(
    sparse: SparseLabels, *, classes: int, temperature: float = 1.0, label_kind: str = "logits"
) -> FloatArray:
    """Return probabilities [B, classes] at a temperature; zero for every missing class."""
    return _spread(sparse, None, classes=classes, temperature=temperature, label_kind=label_kind)


def _spread(
    sparse: SparseLabels,
    level: npt.NDArray[np.float64] | None,
    *,
    classes: int,
    temperature: float,
    label_kind: str,
) -> FloatArray:
    if not temperature > 0:
        raise InvalidArgumentError("temperature is wrong", expected="a number > 0", got=temperature)
    weights = np.zeros((len(sparse.values), classes))
    kept = sparse.values.astype(np.float64)
    if label_kind == "logits":
        # Relative to the row's largest value, so that exp cannot overflow.
        top = kept.max(axis=1, keepdims=True)
        kept = np.exp((kept - top) / temperature)
        if level is not None:
            weights[:] = np.exp((level[:, None] - top) / temperature)
    else:
        kept = kept ** (1 / temperature)
        if level is not None:
            weights[:] = level[:, None] ** (1 / temperature)
    np.put_along_axis(weights, sparse.indices, kept, axis=1)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights.astype(np.float32)
