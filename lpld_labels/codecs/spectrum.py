"""The principal directions of a pool's labels, found in bounded memory.

Up to EXACT_CLASSES classes the C x C scatter matrix is summed up batch by batch and diagonalised. Beyond
that it would not fit, but labels of a linear head span few directions (at most as many as the features
before it), so a randomised range finder catches them: multiply the scatter matrix, never formed, with
random vectors, orthonormalise, repeat, and diagonalise what the sample looks like in that subspace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.float16 import converted
from lpld_labels.codecs.label_meaning import as_finite_logits
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import LabelArray

FloatArray = npt.NDArray[np.float32]

EXACT_CLASSES = 2048
MOST_DIRECTIONS = 1088
"""For the range finder: 1024 of use and a margin that makes the last of them reliable."""
POWER_ROUNDS = 2
ROWS_AT_ONCE = 1024
ROUNDING_SHARE = 1e-9
"""Variance, as a share of the largest, that single-precision labels may show in a direction by rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum:
    """Mean and principal directions of some labels.

    mean: float32 [C]. directions: float32 [K, C], orthonormal, each summing to 0 (what shifts a whole
    row is no part of them), by falling spread. spreads: float32 [K], standard deviation along each.
    """

    mean: FloatArray
    directions: FloatArray
    spreads: FloatArray

    def coordinates(self, blocks: Sequence[LabelArray], *, label_kind: str) -> FloatArray:
        """Return the labels' coordinates float32 [n, K]."""
        parts = [block @ self.directions.T for block in _centred(blocks, self.mean, label_kind)]
        return np.concatenate(parts) if parts else np.empty((0, len(self.directions)), np.float32)


def find_spectrum(blocks: Sequence[LabelArray], *, label_kind: str = "logits", seed: int = 0) -> Spectrum:
    """Find the directions of labels given in blocks, float16/float32 [B, C] each."""
    rows = sum(len(block) for block in blocks)
    classes = blocks[0].shape[1]
    total = np.zeros(classes)
    for block in blocks:
        total += as_finite_logits(converted(block, np.float32), label_kind).sum(axis=0, dtype=np.float64)
    mean = (total / rows).astype(np.float32)
    if classes <= EXACT_CLASSES:
        frame = np.eye(classes, dtype=np.float32)
    else:
        frame = _range(blocks, mean, min(MOST_DIRECTIONS, rows, classes), label_kind, seed)
    scatter = np.zeros((frame.shape[1], frame.shape[1]))
    for block in _centred(blocks, mean, label_kind):
        seen = (block if classes <= EXACT_CLASSES else block @ frame).astype(np.float64)
        scatter += seen.T @ seen
    values, rotation = np.linalg.eigh(scatter / rows)
    # n rows around their mean span n - 1 directions; what lies below rounding is not there.
    floor = max(float(values[-1]), 0.0) * ROUNDING_SHARE
    count = min(int((values > floor).sum()), rows - 1)
    order = np.argsort(values)[::-1][:count]
    directions = np.ascontiguousarray((frame @ rotation[:, order].astype(np.float32)).T)
    spreads = np.sqrt(values[order]).astype(np.float32)
    return Spectrum(mean=mean, directions=_oriented(directions), spreads=spreads)


def _centred(blocks: Sequence[LabelArray], mean: FloatArray, label_kind: str) -> Iterator[FloatArray]:
    """Yield some hundred rows at a time around the mean, with each row's own mean removed."""
    for group in _groups(blocks):
        values = np.concatenate(
            [as_finite_logits(converted(block, np.float32), label_kind) for block in group]
        )
        values -= mean
        values -= values.mean(axis=1, keepdims=True)
        yield values


def _groups(blocks: Sequence[LabelArray]) -> Iterator[list[LabelArray]]:
    """Gather blocks until they have ROWS_AT_ONCE rows: matrix products are faster in larger pieces."""
    group: list[LabelArray] = []
    for block in blocks:
        group.append(block)
        if sum(map(len, group)) >= ROWS_AT_ONCE:
            yield group
            group = []
    if group:
        yield group


def _range(
    blocks: Sequence[LabelArray], mean: FloatArray, count: int, label_kind: str, seed: int
) -> FloatArray:
    """Return an orthonormal frame [C, count] of the subspace in which the labels vary most."""
    classes = len(mean)
    frame = keyed_generator(seed, classes, count).standard_normal((classes, count), np.float32)
    for _ in range(POWER_ROUNDS):
        product = np.zeros((classes, count), np.float32)
        for block in _centred(blocks, mean, label_kind):
            product += block.T @ (block @ frame)
        frame = np.linalg.qr(product)[0]
    return frame


def _oriented(directions: FloatArray) -> FloatArray:
    """Make the largest entry of each direction positive: the sign means nothing, so fix it."""
    if not directions.size:
        return directions
    largest = np.abs(directions).argmax(axis=1)
    directions *= np.sign(directions[np.arange(len(directions)), largest])[:, None]
    return directions
