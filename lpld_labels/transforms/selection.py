"""Which batches stay: pure functions from keys, scores and a seed to places in the batch index.

`choose` picks from `Candidates`. Random order is the order of `batch_ranks`, and every order but `uniform`
is a fixed sequence of which a prefix is kept. So a harder pruning is a subset of a milder one.

Metrics are the paper's five ways to call a batch easy or hard; high is easy. Per view, with z its logits
and y the class of its own image, averaged over the batch's views:

correct       share of views with argmax z = y
diff          |z1 - z2|, the gap between the two largest logits
diff_signed   z_y - max of the other classes' logits; negative where the teacher disagrees
cut_ratio     the batch's stored mixing ratio, i.e. the weight of the view itself; 1 where nothing was mixed
confidence    the largest softmax value

A pool of probabilities p has z = log p, which differs from the logits by a shift per row only; a
probability of 0 ranks as the smallest half, 2^-24, for averages need numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.label_semantics import as_finite_logits
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.limits import MAX_INDEX
from lpld_labels.format.random_streams import batch_ranks
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.pool.reader import PoolReader

Places = npt.NDArray[np.int64]
"""int64 [k], places in the batch index."""
Scores = npt.NDArray[np.float64]

PREFERENCES = ("hard", "easy", "uniform")
# An epoch is ranked as the batch no real epoch has.
_WHOLE_EPOCH = MAX_INDEX + 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """Batches that may be kept, in key order.

    places: int64 [n]. epochs, batches, rows: int32 [n]. scores: float64 [n], high is easy, or None.
    """

    places: Places
    epochs: npt.NDArray[np.int32]
    batches: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    scores: Scores | None = None

    def __len__(self) -> int:
        return len(self.places)

    def subset(self, chosen: npt.NDArray[np.bool_]) -> Candidates:
        """Return the candidates where `chosen` (bool [n]) is true."""
        return replace(
            self,
            places=self.places[chosen],
            epochs=self.epochs[chosen],
            batches=self.batches[chosen],
            rows=self.rows[chosen],
            scores=None if self.scores is None else self.scores[chosen],
        )


def require_ratio(ratio: float) -> None:
    """Refuse a ratio that is none."""
    if not (math.isfinite(ratio) and ratio >= 1):
        raise InvalidArgumentError("ratio is too small", expected="a number >= 1", got=ratio)


def kept_count(candidates: int, ratio: float) -> int:
    """Return floor(candidates / ratio), without the rounding of floating-point division."""
    require_ratio(ratio)
    count = int(candidates / Fraction(str(ratio)))
    if count < 1:
        raise InvalidArgumentError(
            "ratio is too large for this pool: nothing would be left",
            expected=f"1 to {candidates}, the number of batches to choose from",
            got=ratio,
        )
    return count


def ratio_that_keeps(kept: int, candidates: int) -> float:
    """Return a ratio at which this many of the candidates stay."""
    ratio = candidates / kept
    # A quotient that was rounded up would keep one less.
    return ratio if kept_count(candidates, ratio) == kept else math.nextafter(ratio, 0)


def choose(candidates: Candidates, count: int, *, level: str, prefer: str | None, seed: int) -> Places:
    """Return the places of `count` batches in key order.

    prefer: None for random order, else which end of the scores to keep; ties go by random order.
        At epoch level whole epochs are taken in that order and the last one is cut short.
    """
    if not 1 <= count <= len(candidates):
        raise InvalidArgumentError(
            "cannot keep that many batches", expected=f"1 to {len(candidates)}", got=count
        )
    if prefer is not None and candidates.scores is None:
        raise InvalidArgumentError("a preference needs a metric", expected="scores", got=prefer)
    units = _Units(candidates, level)
    order = units.ordered(seed, None if prefer is None else candidates.scores)
    if prefer == "easy":
        order = order[::-1]
    elif prefer == "uniform":
        order = _evenly_spaced(order, units.sizes, count)
    return np.sort(candidates.places[units.members(order)[:count]])


class _Units:
    """What is kept or dropped as one: batches, or epochs as runs of neighbouring batches."""

    def __init__(self, candidates: Candidates, level: str) -> None:
        self._rows = candidates.rows
        if level == "batch":
            self._starts = np.arange(len(candidates))
            self._key = (candidates.epochs, candidates.batches)
        else:
            epochs, self._starts = np.unique(candidates.epochs, return_index=True)
            self._key = (epochs, np.full(len(epochs), _WHOLE_EPOCH))
        self.sizes: Places = np.diff(self._starts, append=len(candidates))

    def ordered(self, seed: int, scores: Scores | None) -> Places:
        """Return the units by score (mean over all views, hardest first), then in random order."""
        columns: list[npt.NDArray[Any]] = [self._key[1], self._key[0], batch_ranks(seed, *self._key)]
        if scores is not None:
            total = np.add.reduceat(scores * self._rows, self._starts)
            columns.append(total / np.add.reduceat(self._rows, self._starts))
        return np.lexsort(columns)

    def members(self, units: Places) -> Places:
        """Return the candidates of some units, unit by unit in the order given."""
        sizes = self.sizes[units]
        ends = np.cumsum(sizes)
        offsets = np.repeat(self._starts[units] - (ends - sizes), sizes)
        return np.asarray(offsets + np.arange(len(offsets)))


def _evenly_spaced(order: Places, sizes: Places, count: int) -> Places:
    """Return the fewest evenly spaced units that hold at least `count` batches."""
    number = math.ceil(count / int(sizes.max()))
    while True:
        spaced = order[(2 * np.arange(number) + 1) * len(order) // (2 * number)]
        if int(sizes[spaced].sum()) >= count:
            return spaced
        number += 1


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
