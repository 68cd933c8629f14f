"""Labels that look like a network's: few directions, falling spread, one class that stands out."""

from typing import Any

import numpy as np
import numpy.typing as npt


def make_logits(
    rows: int,
    classes: int,
    *,
    rank: int = 12,
    seed: int = 0,
    noise: float = 0.05,
    dtype: npt.DTypeLike = np.float16,
) -> npt.NDArray[Any]:
    """Return [rows, classes] logits of a linear head that is the same for every seed."""
    head = np.random.default_rng([rank, classes]).normal(0, 1, (rank, classes))
    rng = np.random.default_rng([seed, rows])
    features = np.maximum(rng.normal(0.3, 1, (rows, rank)), 0) * np.geomspace(3, 0.3, rank)
    return (features @ head + rng.normal(0, noise, (rows, classes)) + 0.7).astype(dtype)


def make_probabilities(rows: int, classes: int, **options: Any) -> npt.NDArray[Any]:
    """Return [rows, classes] softmax of such logits."""
    logits = make_logits(rows, classes, **{**options, "dtype": np.float32})
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray(weights, options.get("dtype", np.float16))
