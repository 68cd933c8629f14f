"""Check a pool's labels: label sampled batches again with its teacher and compare.

Labels are compared as stored: logits as logits, probabilities after the same softmax, sparse labels by their
kept classes and by the one value that all missing classes share. A stored value may differ by its codec's
rounding and by the rounding of float32 sums on other hardware. Other images, resizing or weights change
logits far more.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lpld_core.images import rendered
from lpld_core.settings import Precision
from lpld_core.teachers.ensemble import Ensemble
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.codecs import Codec
from lpld_labels.codecs.label_semantics import softened
from lpld_labels.codecs.topk import KeptClasses, kept_classes, tail_level
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.manifest import PoolHeader, ensemble_rule
from lpld_labels.format.probe import TOLERANCE, probe_difference, probes_of
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import BatchKey, LabelBatch
from lpld_labels.interop.settings import import_parameters
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render import ImageStore
from lpld_labels.render.images import check_images, find_images

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

SUM_NOISE = 1e-5
"""Rounding error of float32 sums in a different order, relative to a row's largest logit."""


@dataclass(frozen=True, kw_only=True)
class RowDifference:
    """A stored label that differs from the teacher's."""

    key: BatchKey
    slot: int
    image: str
    difference: float


@dataclass(frozen=True, kw_only=True)
class TeacherCheck:
    """The result of comparing labels as the pool stores them: as logits or as probabilities.

    top1_agreement: share of rows with the same top class. near_ties: number of rows in which the top classes
    differ only by rounding. first_difference: the first row above tolerance, in key order.
    wrong_teachers: messages about teachers that differ from the teachers that the pool records.
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
        """Whether these are the pool's teachers and no row is above tolerance."""
        return self.rows_above_tolerance == 0 and not self.wrong_teachers


def verify_with_teacher(
    pool: PoolReader,
    images_dir: str | os.PathLike[str] | None,
    teachers: LoadedTeacher | Sequence[LoadedTeacher],
    *,
    batches: int = 8,
    seed: int = 0,
    tolerance: float | None = None,
    amp: Precision = "off",
    progress: Progress | None = None,
) -> TeacherCheck:
    """Sample batches by `seed`, label them again and compare with the pool.

    images_dir: the labelled image folder; None for a pool that carries its images. teachers: in the pool's
    order. tolerance: largest allowed difference; None: the rounding error of the codec.
    Raises ImageMismatchError, with the file name, if an image has changed since it was labelled.
    """
    given = [teachers] if isinstance(teachers, LoadedTeacher) else teachers
    rule = ensemble_rule(pool.header.ensemble)
    if rule is None and len(given) > 1 and pool.header.ensemble is not None:
        raise InvalidArgumentError(
            "the pool combines its teachers by an unknown rule", where=pool.location, got=pool.header.ensemble
        )
    ensemble = Ensemble(given, amp=amp, combine=rule or "norm-scaled")
    if not len(pool):
        raise InvalidArgumentError("the pool is empty", where=pool.location)
    ensemble.teachers[0].require_classes(pool.classes, "pool", where=pool.location)
    if batches < 1:
        raise InvalidArgumentError("no batches to compare", expected="at least 1", got=batches)
    # No difference could exceed a tolerance of NaN or infinity.
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise InvalidArgumentError("tolerance is wrong", expected="a number >= 0", got=tolerance)
    order = np.argsort(keyed_generator(seed).random(len(pool)), kind="stable")
    keys = [pool.keys[place] for place in sorted(order[:batches].tolist())]
    meaning = _stored_meaning(pool.header)
    images = find_images(pool, images_dir)
    check_images(images)
    found = []
    with closing(rendered(keys, pool.read, ImageStore(images), pool.header.augmentation)) as again:
        for done, (batch, pixels) in enumerate(again, 1):
            found.append(_compared(pool, batch, ensemble.logits(pixels).numpy(), meaning, tolerance))
            if progress is not None:
                progress(done, len(keys))
    image, slot, difference, wrong, same, ties = (np.concatenate(part) for part in zip(*found, strict=True))
    first = None
    if wrong.any():
        row = int(np.argmax(wrong))
        batch_of_row = np.repeat(np.arange(len(keys)), [len(part[0]) for part in found])
        first = RowDifference(
            key=keys[batch_of_row[row]],
            slot=int(slot[row]),
            image=pool.images.paths[int(image[row])],
            difference=float(difference[row]),
        )
    return TeacherCheck(
        batches=len(keys),
        rows=len(wrong),
        largest_difference=float(np.fmax.reduce(difference, initial=0.0)),  # fmax ignores NaN
        top1_agreement=float(same.mean()),
        near_ties=int(ties.sum()),
        rows_above_tolerance=int(wrong.sum()),
        first_difference=first,
        wrong_teachers=wrong_teachers(pool.header, ensemble),
    )


def wrong_teachers(header: PoolHeader, ensemble: Ensemble) -> tuple[str, ...]:
    """Return messages about teachers that differ from the pool's. Weights without a record are skipped."""
    recorded = header.teachers
    if not recorded:
        return ()
    if len(recorded) == 1 and header.ensemble is not None and recorded[0].weights_digest is None:
        # An imported ensemble: a single entry records what the teachers share, but not their number.
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
                problems.append(f"{ours.name} is used with {field} {given}, the pool records {expected}")
    if not problems and any(True for _ in probes_of(header)):
        now = ensemble.probe((header.augmentation.output_height, header.augmentation.output_width))
        difference = max(probe_difference(probe, now) for probe in probes_of(header))
        if difference > TOLERANCE:
            problems.append(f"outputs on random images differ by {difference:.0%} from those of the build")
    return tuple(problems)


@dataclass(frozen=True, kw_only=True)
class _Meaning:
    """Meaning of stored values: logits, or probabilities at a temperature. hard: labels are one-hot."""

    kind: str
    temperature: float
    hard: bool

    def of(self, logits: FloatArray) -> FloatArray:
        return logits if self.kind == "logits" else softened(logits, "logits", self.temperature)


def _stored_meaning(header: PoolHeader) -> _Meaning:
    parameters = import_parameters(header)
    temperature = parameters.get("temperature")
    if temperature is None:
        temperature = 1.0
    if not isinstance(temperature, int | float) or temperature <= 0:
        raise InvalidArgumentError(
            "recorded temperature is wrong", expected="a positive number", got=temperature
        )
    hard = parameters.get("label_type") == "hard"
    return _Meaning(kind=header.label_kind, temperature=float(temperature), hard=hard)


def _compared(
    pool: PoolReader, batch: LabelBatch, logits: FloatArray, meaning: _Meaning, tolerance: float | None
) -> tuple[Any, ...]:
    """Return arrays [B]: image, slot, largest difference, is above tolerance, has same top-1, is near-tie."""
    stored = batch.labels.astype(np.float32)
    expected = meaning.of(logits)
    payload = pool.read_encoded(batch.key).payload
    sparse = kept_classes(pool.codec, payload, rows=len(stored), classes=stored.shape[1])
    if sparse is None:
        difference, allowed = _dense_difference(stored, logits, pool.codec, meaning)
    else:
        difference, allowed = _sparse_difference(stored, logits, sparse, pool.codec, meaning)
    if tolerance is not None:
        allowed = np.full_like(difference, tolerance)
    # Not "difference > allowed": NaN from the teacher must count as a difference.
    wrong = ~(difference <= allowed).all(axis=1)
    rows = np.arange(len(stored))
    ours, theirs = stored.argmax(axis=1), expected.argmax(axis=1)
    gap = expected[rows, theirs] - expected[rows, ours]
    ties = (ours != theirs) & (gap <= allowed[rows, theirs] + allowed[rows, ours])
    return batch.images, rows, difference.max(axis=1), wrong, ours == theirs, ties


def _dense_difference(
    stored: FloatArray, logits: FloatArray, codec: Codec, meaning: _Meaning
) -> tuple[FloatArray, FloatArray]:
    """Return the actual and allowed differences [B, C] of dense labels from the teacher's.

    The allowed difference is the rounding error plus, for lossy codecs, the codec's largest error in the row.
    """
    expected = meaning.of(logits)
    allowed = _rounding(expected, logits, meaning, np.dtype(np.float16))
    if not codec.lossless:
        allowed += np.abs(_round_trip(expected, codec) - expected).max(axis=1, keepdims=True)
    return np.abs(stored - expected), allowed


def _sparse_difference(
    stored: FloatArray, logits: FloatArray, sparse: KeptClasses, codec: Codec, meaning: _Meaning
) -> tuple[FloatArray, FloatArray]:
    """Return the actual and allowed differences [B, C] of sparse labels from the teacher's.

    Kept classes are compared one by one. All missing classes share one stored value, which is compared with
    the teacher's. If the teacher ranks a missing class above the lowest kept one, the gap is the difference.
    """
    expected = meaning.of(logits)
    allowed = _rounding(expected, logits, meaning, sparse.dtype)
    if meaning.hard:
        expected = _one_hot(expected, sparse.kept, allowed)
    if sparse.on_grid:
        again = _round_trip(expected, codec)
        # 8-bit values lie on a grid: allow the largest error among a row's kept classes.
        kept = again > again.min(axis=1, keepdims=True)
        allowed = allowed + np.where(kept, np.abs(again - expected), 0).max(axis=1, keepdims=True)
    lowest = np.where(sparse.kept, expected, np.inf).min(axis=1, keepdims=True)
    above = np.where(sparse.kept, 0, expected - lowest)
    difference = np.where(sparse.kept, np.abs(stored - expected), 0)
    if sparse.tail:
        level = tail_level(expected, sparse.kept, meaning.kind)[:, None]
        difference = np.where(sparse.kept, difference, np.abs(stored - level))
        allowed = np.where(sparse.kept, allowed, _allowed_level(level, allowed, sparse, meaning))
    slack = 2 * allowed.max(axis=1, keepdims=True)
    misplaced = above > slack
    return (
        np.asarray(np.where(misplaced, above, difference), np.float32),
        np.asarray(np.where(misplaced, slack, allowed), np.float32),
    )


def _rounding(
    expected: FloatArray, logits: FloatArray, meaning: _Meaning, dtype: np.dtype[Any]
) -> FloatArray:
    """Return the allowed error of each value: one step of its float type, plus the noise of float32 sums."""
    noise = SUM_NOISE * np.abs(logits).max(axis=1, keepdims=True)
    if meaning.kind == "logits":
        dtype = np.dtype(np.float16)
    else:
        # The logarithm of a probability changes by at most twice the largest change of a logit.
        noise = 2 / meaning.temperature * noise * expected
    step = np.spacing(expected.astype(dtype)).astype(np.float32)
    return np.asarray(np.abs(step) + noise, np.float32)


def _allowed_level(
    level: FloatArray, allowed: FloatArray, sparse: KeptClasses, meaning: _Meaning
) -> FloatArray:
    """Return the error [B, 1] allowed for the one value that stands for all dropped classes of a row."""
    step = np.spacing(level.astype(np.float16)).astype(np.float32)
    noise = np.where(sparse.kept, 0, allowed).max(axis=1, keepdims=True)
    if meaning.kind == "probabilities":
        # Missing classes share 1 minus the sum of the kept classes, so they also share its rounding error.
        missing = np.maximum((~sparse.kept).sum(axis=1, keepdims=True), 1)
        noise = noise + np.where(sparse.kept, allowed, 0).sum(axis=1, keepdims=True) / missing
    return np.asarray(np.abs(step) + noise, np.float32)


def _one_hot(expected: FloatArray, kept: BoolArray, allowed: FloatArray) -> FloatArray:
    """Return one-hot labels of the teacher's top class, or of the stored class if both tie within noise."""
    rows = np.arange(len(expected))
    stored, top = kept.argmax(axis=1), expected.argmax(axis=1)
    near = expected[rows, top] - expected[rows, stored] <= allowed[rows, top] + allowed[rows, stored]
    hot = np.zeros_like(expected)
    hot[rows, np.where(near, stored, top)] = 1
    return hot


def _round_trip(labels: FloatArray, codec: Codec) -> FloatArray:
    encoded = codec.encode(torch.from_numpy(labels).half().numpy())
    rows, classes = labels.shape
    return codec.decode(encoded.payload, rows=rows, classes=classes).astype(np.float32)
