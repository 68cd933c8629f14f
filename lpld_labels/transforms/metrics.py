"""The paper's five ways to call a label batch easy or hard. High is easy.

Per view, with z its logits and y the class of its own image, averaged over the batch's views:

correct       share of views with argmax z = y
diff          |z1 - z2|, the gap between the two largest logits
diff_signed   z_y - max of the other classes' logits; negative where the teacher disagrees
cut_ratio     the batch's stored mixing ratio, i.e. the weight of the view itself; 1 where nothing was mixed
confidence    the largest softmax value

A pool of probabilities p has z = log p, which differs from the logits by a shift per row only; a
probability of 0 ranks as the smallest half, 2^-24, for averages need numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.label_semantics import as_finite_logits
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.pool.reader import PoolReader

Floats = npt.NDArray[np.float32]
Classes = npt.NDArray[np.integer]


def correct(logits: Floats, classes: Classes) -> Floats:
    """Return 1.0 where the largest logit is the image's own class: float32 [B]."""
    return np.asarray(logits.argmax(axis=1) == classes, np.float32)


def diff(logits: Floats, classes: Classes) -> Floats:
    """Return the gap between the two largest logits: float32 [B]."""
    del classes
    top = np.partition(logits, -2, axis=1)[:, -2:]
    return np.asarray(top[:, 1] - top[:, 0])


def diff_signed(logits: Floats, classes: Classes) -> Floats:
    """Return the own class's logit minus the best other one: float32 [B]."""
    rows = np.arange(len(logits))
    others = logits.copy()
    others[rows, classes] = -np.inf
    return np.asarray(logits[rows, classes] - others.max(axis=1))


def confidence(logits: Floats, classes: Classes) -> Floats:
    """Return the largest softmax value: float32 [B]."""
    del classes
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(1.0 / np.exp(shifted).sum(axis=1))


def cut_ratio(views: ViewBatch) -> float:
    """Return the weight of the views themselves in the mix."""
    return 1.0 if views.mix is None else views.mix.strength


_LABEL_METRICS: Mapping[str, Callable[[Floats, Classes], Floats]] = {
    "correct": correct,
    "diff": diff,
    "diff_signed": diff_signed,
    "confidence": confidence,
}
METRICS: tuple[str, ...] = ("correct", "diff", "diff_signed", "cut_ratio", "confidence")


def score_batches(
    pool: PoolReader,
    keys: Sequence[BatchKey],
    metric: str,
    *,
    progress: Progress | None = None,
) -> npt.NDArray[np.float64]:
    """Return each batch's mean over its views: float64 [len(keys)]. Holds one batch at a time.

    Give the keys in file order (`PoolReader.index` knows it) to read the pool from front to back.
    """
    if metric not in METRICS:
        raise InvalidArgumentError("unknown metric", expected=f"one of {', '.join(METRICS)}", got=metric)
    image_classes = pool.images.classes
    scores = np.empty(len(keys))
    for number, key in enumerate(keys):
        views = pool.read_views(key)
        if metric == "cut_ratio":
            scores[number] = cut_ratio(views)
        else:
            logits = _logits(pool, key)
            scores[number] = _LABEL_METRICS[metric](logits, image_classes[views.images]).mean(
                dtype=np.float64
            )
        if progress is not None:
            progress(number + 1, len(keys))
    return scores


def _logits(pool: PoolReader, key: BatchKey) -> Floats:
    """Return a batch's labels as logits, float32 [B, C]."""
    labels: Floats = pool.read_labels(key, dtype=np.float32)
    return as_finite_logits(labels, pool.header.label_kind)
