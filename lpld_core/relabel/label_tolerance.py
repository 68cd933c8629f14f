"""What a pool should hold if its teacher says these logits, and how far a stored value may be off.

Labels are compared as they are stored: logits as logits, probabilities after the softmax that made
them, sparse labels on the classes they kept and on the level of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lpld_labels.codecs import Codec
from lpld_labels.codecs.label_semantics import softened
from lpld_labels.codecs.topk import KeptClasses, tail_level
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.format.records import LabelArray
from lpld_labels.interop.settings import import_parameters

FloatArray = npt.NDArray[np.float32]

SUM_NOISE = 1e-5
"""Share of a row's largest logit that float32 sums in another order may add or take away."""


@dataclass(frozen=True, kw_only=True)
class StoredMeaning:
    """What a pool's numbers are: logits or probabilities at a temperature, or the likeliest class."""

    kind: str
    temperature: float
    hard: bool


def stored_meaning(header: PoolHeader) -> StoredMeaning:
    """Return what a pool records; temperature and label type are in the lineage of its import."""
    parameters = import_parameters(header)
    temperature = parameters.get("temperature", 1.0)
    if not isinstance(temperature, int | float) or temperature <= 0:
        raise InvalidArgumentError(
            "recorded temperature is wrong", expected="a positive number", got=temperature
        )
    return StoredMeaning(
        kind=header.label_kind, temperature=float(temperature), hard=parameters.get("label_type") == "hard"
    )


def expected_labels(logits: FloatArray, meaning: StoredMeaning) -> FloatArray:
    """Return what is stored for these logits [B, C]: themselves, or their softmax."""
    return logits if meaning.kind == "logits" else softened(logits, "logits", meaning.temperature)


def dense_difference(
    stored: FloatArray, logits: FloatArray, codec: Codec, meaning: StoredMeaning
) -> tuple[FloatArray, FloatArray]:
    """Return how far labels [B, C] of all classes are from what these logits give, and may be.

    That is rounding to float16 plus, for lossy codecs, the largest error this codec makes on the same row.
    """
    expected = expected_labels(logits, meaning)
    allowed = _rounding(expected, logits, meaning, np.dtype(np.float16))
    if not codec.lossless:
        allowed += np.abs(_round_trip(expected, codec) - expected).max(axis=1, keepdims=True)
    return np.abs(stored - expected), allowed


def sparse_difference(
    stored: FloatArray, logits: FloatArray, sparse: KeptClasses, codec: Codec, meaning: StoredMeaning
) -> tuple[FloatArray, FloatArray]:
    """Return how far sparse labels [B, C] are from what these logits give, and how far they may be.

    Kept classes are compared one by one, the level of the others with theirs. A class that was left out
    though it lies above one that was kept differs by as much as it lies above.
    """
    expected = expected_labels(logits, meaning)
    allowed = _rounding(expected, logits, meaning, sparse.dtype)
    if meaning.hard:
        expected = _one_hot(expected, sparse.kept, allowed)
    if sparse.on_grid:
        allowed = allowed + _grid_error(expected, codec)
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
    expected: FloatArray, logits: FloatArray, meaning: StoredMeaning, dtype: np.dtype[Any]
) -> FloatArray:
    """Return how far a stored value may be from the expected one [B, C]: one step of its type, plus noise.

    Half of the step is rounding, the other half noise of float32 sums at a rounding boundary.
    """
    noise = SUM_NOISE * np.abs(logits).max(axis=1, keepdims=True)
    if meaning.kind == "logits":
        dtype = np.dtype(np.float16)
    else:
        # The logarithm of a probability moves by at most twice what its logits move by.
        noise = 2 / meaning.temperature * noise * expected
    step = np.spacing(expected.astype(dtype)).astype(np.float32)
    return np.asarray(np.abs(step) + noise, np.float32)


def _allowed_level(
    level: FloatArray, allowed: FloatArray, sparse: KeptClasses, meaning: StoredMeaning
) -> FloatArray:
    """Return how far the level [B, 1] of the missing classes may be off."""
    step = np.spacing(level.astype(np.float16)).astype(np.float32)
    noise = np.where(sparse.kept, 0, allowed).max(axis=1, keepdims=True)
    if meaning.kind == "probabilities":
        # The missing ones share what the kept ones leave of 1, so also what those lost by rounding.
        missing = np.maximum((~sparse.kept).sum(axis=1, keepdims=True), 1)
        noise = noise + np.where(sparse.kept, allowed, 0).sum(axis=1, keepdims=True) / missing
    return np.asarray(np.abs(step) + noise, np.float32)


def _one_hot(expected: FloatArray, kept: npt.NDArray[np.bool_], allowed: FloatArray) -> FloatArray:
    """Return 1 for the likeliest class, which is the stored one if that is within noise of it."""
    rows = np.arange(len(expected))
    said, top = kept.argmax(axis=1), expected.argmax(axis=1)
    near = expected[rows, top] - expected[rows, said] <= allowed[rows, top] + allowed[rows, said]
    hot = np.zeros_like(expected)
    hot[rows, np.where(near, said, top)] = 1
    return hot


def _grid_error(expected: FloatArray, codec: Codec) -> FloatArray:
    """Return the largest error of a row's kept values [B, 1]; values of 8 bits lie on a grid."""
    again = _round_trip(expected, codec)
    error = np.abs(again - expected)
    kept = again > again.min(axis=1, keepdims=True)
    return np.asarray(np.where(kept, error, 0).max(axis=1, keepdims=True), np.float32)


def _round_trip(labels: FloatArray, codec: Codec) -> LabelArray:
    halves = torch.from_numpy(labels).half().numpy()
    encoded = codec.encode(halves)
    rows, classes = labels.shape
    return codec.decode(encoded.payload, rows=rows, classes=classes)
