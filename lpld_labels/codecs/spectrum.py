"""The principal directions of a pool's labels, found in bounded memory.

Up to EXACT_CLASSES classes the C x C scatter matrix is summed up batch by batch and diagonalised. Beyond
that it would not fit, but labels of a linear head span few directions (at most as many as the features
before it), so a randomised range finder catches them: multiply the scatter matrix, never formed, with
random vectors, orthonormalise, repeat, and diagonalise what the sample looks like in that subspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.fitting import NO_KEEPER, Keeper
from lpld_labels.codecs.float16 import converted
from lpld_labels.codecs.label_meaning import as_finite_logits
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import LabelArray

FloatArray = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
AnySum = TypeVar("AnySum", bound=npt.NDArray[Any])
AnyPart = TypeVar("AnyPart")

EXACT_CLASSES = 2048
MOST_DIRECTIONS = 1088
"""For the range finder: 1024 of use and a margin that makes the last of them reliable."""
POWER_ROUNDS = 2
ROWS_AT_ONCE = 1024
ROUNDING_SHARE = 1e-9
"""Variance, as a share of the largest, that single-precision labels may show in a direction by rounding."""
_SPECTRUM = "spectrum"


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
        parts = [_centred(group, self.mean, label_kind) @ self.directions.T for group in _groups(blocks)]
        return np.concatenate(parts) if parts else np.empty((0, len(self.directions)), np.float32)


def find_spectrum(
    blocks: Sequence[LabelArray],
    *,
    label_kind: str = "logits",
    seed: int = 0,
    keeper: Keeper = NO_KEEPER,
) -> Spectrum:
    """Find the directions of labels given in blocks, float16/float32 [B, C] each.

    keeper: of sums on their way; interrupted, they go on in the same order, so to the last bit the same.
    """
    known = keeper.get(_SPECTRUM)
    if known is None:
        known = vars(_found(blocks, label_kind, seed, keeper))
        keeper.put(_SPECTRUM, known)
    return Spectrum(**known)


def _found(blocks: Sequence[LabelArray], label_kind: str, seed: int, keeper: Keeper) -> Spectrum:
    rows = sum(len(block) for block in blocks)
    classes = blocks[0].shape[1]
    total = _summed(
        "mean",
        np.zeros(classes),
        blocks,
        lambda block: _logits(block, label_kind).sum(axis=0, dtype=np.float64),
        keeper,
    )
    mean = (total / rows).astype(np.float32)
    groups = list(_groups(blocks))
    if classes <= EXACT_CLASSES:
        frame = np.eye(classes, dtype=np.float32)
    else:
        frame = _range(groups, mean, min(MOST_DIRECTIONS, rows, classes), label_kind, seed, keeper)

    def squares(group: Sequence[LabelArray]) -> Doubles:
        block = _centred(group, mean, label_kind)
        seen = (block if classes <= EXACT_CLASSES else block @ frame).astype(np.float64)
        return np.asarray(seen.T @ seen)

    scatter = _summed("scatter", np.zeros((frame.shape[1], frame.shape[1])), groups, squares, keeper)
    values, rotation = np.linalg.eigh(scatter / rows)
    # n rows around their mean span n - 1 directions; what lies below rounding is not there.
    floor = max(float(values[-1]), 0.0) * ROUNDING_SHARE
    count = min(int((values > floor).sum()), rows - 1)
    order = np.argsort(values)[::-1][:count]
    directions = np.ascontiguousarray((frame @ rotation[:, order].astype(np.float32)).T)
    spreads = np.sqrt(values[order]).astype(np.float32)
    return Spectrum(mean=mean, directions=_oriented(directions), spreads=spreads)


def _summed(
    name: str,
    total: AnySum,
    parts: Sequence[AnyPart],
    term: Callable[[AnyPart], AnySum],
    keeper: Keeper,
) -> AnySum:
    """Add to `total` a term for each part, in order, and go on from where the keeper has it."""
    known = keeper.get(name)
    done = 0
    if known is not None:
        total, done = cast("AnySum", known["sum"]), int(known["parts"])
    for number, part in enumerate(parts[done:], done + 1):
        total += term(part)
        keeper.put(name, {"sum": total, "parts": np.array(number)})
    return total


def _logits(block: LabelArray, label_kind: str) -> FloatArray:
    return as_finite_logits(converted(block, np.float32), label_kind)


def _centred(group: Sequence[LabelArray], mean: FloatArray, label_kind: str) -> FloatArray:
    """Return the rows of some blocks around the mean, with each row's own mean removed."""
    values = np.concatenate([_logits(block, label_kind) for block in group])
    values -= mean
    values -= values.mean(axis=1, keepdims=True)
    return values


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
    groups: Sequence[Sequence[LabelArray]],
    mean: FloatArray,
    count: int,
    label_kind: str,
    seed: int,
    keeper: Keeper,
) -> FloatArray:
    """Return an orthonormal frame [C, count] of the subspace in which the labels vary most."""
    classes = len(mean)
    frame = keyed_generator(seed, classes, count).standard_normal((classes, count), np.float32)
    for number in range(POWER_ROUNDS):
        frame = _turned(frame, groups, mean, label_kind, number, keeper)
    return frame


def _turned(
    frame: FloatArray,
    groups: Sequence[Sequence[LabelArray]],
    mean: FloatArray,
    label_kind: str,
    number: int,
    keeper: Keeper,
) -> FloatArray:
    """Return the frame after the round of that number: multiplied with the scatter matrix, orthonormal."""
    known = keeper.get(f"frame {number}")
    if known is None:

        def product(group: Sequence[LabelArray]) -> FloatArray:
            block = _centred(group, mean, label_kind)
            return np.asarray(block.T @ (block @ frame))

        summed = _summed(f"product {number}", np.zeros_like(frame), groups, product, keeper)
        known = {"frame": np.ascontiguousarray(np.linalg.qr(summed)[0])}
        keeper.put(f"frame {number}", known)
    return np.asarray(known["frame"])


def _oriented(directions: FloatArray) -> FloatArray:
    """Make the largest entry of each direction positive: the sign means nothing, so fix it."""
    if not directions.size:
        return directions
    largest = np.abs(directions).argmax(axis=1)
    directions *= np.sign(directions[np.arange(len(directions)), largest])[:, None]
    return directions
