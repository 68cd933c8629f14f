"""Does the teacher still say what a pool holds? Re-run it on sampled batches and compare.

A stored value may differ from the teacher's by what its codec rounds away and by the noise of
float32 sums on other hardware, and by no more. An image that changed, another resize code or other
weights move logits by orders of magnitude more.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lpld_core.images import rendered
from lpld_core.relabel.label_tolerance import (
    dense_difference,
    expected_labels,
    sparse_difference,
    stored_meaning,
)
from lpld_core.teachers.ensemble import Ensemble
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.codecs.topk import kept_classes
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.manifest import EnsembleRule, PoolHeader, ensemble_rule
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import BatchKey, LabelBatch
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render import ImageStore
from lpld_labels.render.images import check_images, find_images

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class RowDifference:
    """A stored label that is not what the teacher says: where it is and by how much it differs."""

    key: BatchKey
    slot: int
    image: str
    difference: float


@dataclass(frozen=True, kw_only=True)
class TeacherCheck:
    """What a comparison found.

    batches, rows: how much was compared. largest_difference: between any stored and new value, in the
    pool's own terms: logits or probabilities.
    top1_agreement: share of rows whose largest value is the same class. near_ties: rows where it is
    not, but the two classes are within rounding of each other.
    rows_above_tolerance, first_difference: rows that differ by more than is allowed, in key order.
    wrong_teachers: teachers whose weights are not those the pool names, one sentence each.
    """

    batches: int
    rows: int
    largest_difference: float
    top1_agreement: float
    near_ties: int
    rows_above_tolerance: int
    first_difference: RowDifference | None
    wrong_teachers: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether these are the pool's teachers and every compared row is as they say."""
        return self.rows_above_tolerance == 0 and not self.wrong_teachers


def verify_with_teacher(
    pool: PoolReader,
    images_dir: str | os.PathLike[str] | None,
    teachers: LoadedTeacher | Sequence[LoadedTeacher],
    *,
    batches: int = 8,
    seed: int = 0,
    device: str | torch.device | None = None,
    tolerance: float | None = None,
    amp: bool = False,
    progress: Progress | None = None,
    image_progress: Progress | None = None,
) -> TeacherCheck:
    """Label sampled batches again and compare with what the pool holds.

    images_dir: the labelled image folder; None for a pool that carries its images.
    teachers: in the pool's order, their logits combined as the pool records. batches: how many to sample,
    by `seed`. device: where to move the teachers first; None leaves them where they are.
    tolerance: largest difference of a label to allow; None allows what the codec rounds away.
    progress, image_progress: called with (done, total) batches, and before that images.
    Raises ImageMismatchError, naming the file, if any image is not the labelled one.
    """
    given = [teachers] if isinstance(teachers, LoadedTeacher) else teachers
    ensemble = Ensemble(given, amp=amp, combine=_rule(pool, len(given)))
    if device is not None:
        for teacher in ensemble.teachers:
            teacher.model.to(device)
    _check_fit(pool, ensemble)
    keys = _sample(pool, batches, seed)
    images = find_images(pool, images_dir)
    check_images(images, progress=image_progress)
    store = ImageStore(images)
    comparison = _Comparison(pool, tolerance)
    with closing(rendered(keys, pool.read, store, pool.header.augmentation)) as again:
        for done, (batch, pixels) in enumerate(again, 1):
            comparison.add(batch, ensemble.logits(pixels).numpy())
            if progress is not None:
                progress(done, len(keys))
    return comparison.result(wrong_teachers(pool.header, ensemble))


def _rule(pool: PoolReader, teachers: int) -> EnsembleRule:
    """Return how the pool's labels were made of several teachers' logits."""
    rule = ensemble_rule(pool.header.ensemble)
    if rule is None and teachers > 1 and pool.header.ensemble is not None:
        raise InvalidArgumentError(
            "the pool combines its teachers in a way that is not known here",
            where=pool.location,
            got=pool.header.ensemble,
        )
    return rule or "norm-scaled"


def _check_fit(pool: PoolReader, ensemble: Ensemble) -> None:
    if not len(pool):
        raise InvalidArgumentError("the pool is empty", where=pool.location)
    if ensemble.classes != pool.classes:
        raise InvalidArgumentError(
            "teacher and pool differ in their number of classes",
            where=pool.location,
            expected=f"{pool.classes} classes",
            got=ensemble.classes,
        )


def _sample(pool: PoolReader, count: int, seed: int) -> list[BatchKey]:
    """Choose batches at random without replacement, in key order."""
    if count < 1:
        raise InvalidArgumentError("nothing to compare", expected="at least 1 batch", got=count)
    order = np.argsort(keyed_generator(seed).random(len(pool)), kind="stable")
    return [pool.keys[place] for place in sorted(order[:count].tolist())]


def wrong_teachers(header: PoolHeader, ensemble: Ensemble) -> tuple[str, ...]:
    """Compare what a pool records about its teachers with those at hand; unknown weights pass."""
    recorded = header.teachers
    if not recorded:
        return ()
    if len(recorded) == 1 and header.ensemble is not None and recorded[0].weights_digest is None:
        # An imported ensemble: how many teachers it had is not known, what they share is.
        recorded = recorded * len(ensemble.teachers)
    if len(recorded) != len(ensemble.teachers):
        return (f"the pool has {len(recorded)} teachers, {len(ensemble.teachers)} were given",)
    problems = []
    for theirs, ours in zip(recorded, ensemble.descriptions, strict=True):
        if theirs.weights_digest is not None and theirs.weights_digest != ours.weights_digest:
            got = (ours.weights_digest or "")[:12]
            problems.append(
                f"{ours.name} with weights {got} is not the pool's {theirs.name} "
                f"with weights {theirs.weights_digest[:12]}"
            )
        for field in ("mean", "std"):
            expected, given = getattr(theirs, field), getattr(ours, field)
            if expected is not None and not np.allclose(expected, given):
                problems.append(f"{ours.name} is used with {field} {given}, the pool says {expected}")
    return tuple(problems)


class _Comparison:
    """Gathers differences batch by batch."""

    def __init__(self, pool: PoolReader, tolerance: float | None) -> None:
        self._pool = pool
        self._meaning = stored_meaning(pool.header)
        # Nothing is above a tolerance that is no number.
        if tolerance is not None and not 0 <= tolerance < math.inf:
            raise InvalidArgumentError("tolerance is wrong", expected="a number >= 0", got=tolerance)
        self._tolerance = tolerance
        self._batches = self._rows = self._above = self._same_top1 = self._near_ties = 0
        self._largest = 0.0
        self._first: RowDifference | None = None

    def add(self, batch: LabelBatch, logits: FloatArray) -> None:
        stored = batch.labels.astype(np.float32)
        expected = expected_labels(logits, self._meaning)
        difference, allowed = self._differences(batch.key, stored, logits)
        if self._tolerance is not None:
            allowed = np.full_like(difference, self._tolerance)
        # Not "difference > allowed": NaN from the teacher must count as a difference.
        wrong = ~(difference <= allowed).all(axis=1)
        if wrong.any() and self._first is None:
            slot = int(np.argmax(wrong))
            self._first = RowDifference(
                key=batch.key,
                slot=slot,
                image=self._pool.images.paths[int(batch.images[slot])],
                difference=float(difference[slot].max()),
            )
        rows = np.arange(len(stored))
        ours, theirs = stored.argmax(axis=1), expected.argmax(axis=1)
        same = ours == theirs
        # A tie: both classes could be on top within what each value may be off.
        gap = expected[rows, theirs] - expected[rows, ours]
        ties = ~same & (gap <= allowed[rows, theirs] + allowed[rows, ours])
        self._batches += 1
        self._rows += len(rows)
        self._above += int(wrong.sum())
        self._same_top1 += int(same.sum())
        self._near_ties += int(ties.sum())
        self._largest = max(self._largest, float(difference.max()))

    def _differences(
        self, key: BatchKey, stored: FloatArray, logits: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return by how much labels differ from the teacher's, and by how much they may, [B, C]."""
        codec = self._pool.codec
        rows, classes = stored.shape
        payload = self._pool.read_encoded(key).payload
        sparse = kept_classes(codec, payload, rows=rows, classes=classes)
        if sparse is not None:
            return sparse_difference(stored, logits, sparse, codec, self._meaning)
        return dense_difference(stored, logits, codec, self._meaning)

    def result(self, wrong_teachers: tuple[str, ...]) -> TeacherCheck:
        return TeacherCheck(
            batches=self._batches,
            rows=self._rows,
            largest_difference=self._largest,
            top1_agreement=self._same_top1 / self._rows,
            near_ties=self._near_ties,
            rows_above_tolerance=self._above,
            first_difference=self._first,
            wrong_teachers=wrong_teachers,
        )
