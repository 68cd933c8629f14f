"""From labels to the whole numbers `klt` stores: projection, quantisation, corrected peaks.

Only encoders need this. The numbers are the same however many threads multiply: where single precision
leaves a doubt on which side of a threshold a coefficient lies, it is computed again in double precision.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.class_sets import largest_classes
from lpld_labels.codecs.float16 import converted
from lpld_labels.codecs.label_meaning import as_finite_logits
from lpld_labels.format.records import IntArray, LabelArray

FloatArray = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

ROUNDING = 0.46
"""A coefficient becomes floor(|c| / step + ROUNDING): a little dead zone, which saves 4 % of the bytes
at equal fidelity at T = 20 and costs 1 % at T = 1. Decoders do not need to know."""
PEAK_SHARE = 8
"""Peaks are corrected on a grid this many times finer than the step."""
LEAD = 0.05
"""How far, on that grid, the largest label must stay ahead after decoding: more than rounding moves."""
DOUBT = 8e-6
"""Error of a single-precision product of length C, as a share of the row's norm; generous."""
MOST_DOUBT = 0.01
"""With more doubt than this, in steps, everything is computed in double precision at once."""


class Numbers(NamedTuple):
    """What is stored of a batch.

    integers: whole numbers [B, L + 1] of steps. classes: int32 [B, m], rising in each row.
    peaks: whole numbers [B, m] of steps / PEAK_SHARE.
    """

    integers: npt.NDArray[Any]
    classes: IntArray
    peaks: npt.NDArray[Any]


class KltQuantiser:
    """Quantises labels of a kind in a basis, float32 [L + 1, C], around a mean, float32 [C]."""

    def __init__(
        self, basis: FloatArray, mean: FloatArray, *, step: float, peaks: int, label_kind: str
    ) -> None:
        self.basis = basis
        self.mean = mean
        self.step = step
        self.peaks = peaks
        self.label_kind = label_kind

    def numbers(self, labels: LabelArray) -> Numbers:
        """Return the numbers that stand for labels [B, C]."""
        logits = as_finite_logits(converted(labels, np.float32), self.label_kind)
        integers = self._integers(logits)
        if not self.peaks:
            return Numbers(integers, np.empty((len(logits), 0), np.int32), np.empty((len(logits), 0)))
        classes = largest_classes(logits, self.peaks)
        return Numbers(integers, classes, self._corrections(logits, integers, classes))

    def _integers(self, logits: FloatArray) -> FloatArray:
        """Return the least-squares coefficients as whole numbers of steps, float32 [B, L + 1]."""
        centred = logits - self.mean
        doubt = DOUBT / self.step * np.linalg.norm(centred, axis=1, keepdims=True)
        if doubt.max(initial=0) > MOST_DOUBT:
            return self._whole(centred.astype(np.float64) @ self._projection.T).astype(np.float32)
        coefficients = centred @ self._fast_projection
        size = np.abs(coefficients)
        size /= self.step
        size += ROUNDING
        integers: FloatArray = np.floor(size)
        size -= integers
        rows, columns = np.nonzero((size < doubt) | (size > 1 - doubt))
        np.copysign(integers, coefficients, out=integers)
        wide = centred[rows].astype(np.float64)
        integers[rows, columns] = self._whole(np.einsum("nc,nc->n", wide, self._projection[columns]))
        return integers

    def _whole(self, coefficients: Doubles) -> Doubles:
        return np.copysign(np.floor(np.abs(coefficients) / self.step + ROUNDING), coefficients)

    @cached_property
    def _projection(self) -> Doubles:
        """float64 [L + 1, C]: labels @ projection.T are the least-squares coefficients.

        The basis is orthonormal up to the rounding of its entries; solving for that rounding keeps a
        coarse basis (small pools) from adding its error twice.
        """
        basis = self.basis.astype(np.float64)
        return np.asarray(np.linalg.solve(basis @ basis.T, basis))

    @cached_property
    def _fast_projection(self) -> FloatArray:
        return np.ascontiguousarray(self._projection.T, np.float32)

    def _corrections(self, logits: FloatArray, integers: FloatArray, classes: IntArray) -> Doubles:
        """Return whole numbers [B, m] that bring the peaks back, the largest ahead of all others."""
        grid = self.step / PEAK_SHARE
        rows = np.arange(len(logits))
        places = classes.astype(np.intp)
        coarse = self._exactly(integers, places)
        # Relative to what the rounding of the row's mean does to all classes alike: softmax does not see it.
        shift = (logits - self.mean).mean(axis=1, dtype=np.float64) - self.step * self.basis[0, 0] * integers[
            :, 0
        ]
        wanted = np.take_along_axis(logits, places, axis=1) - shift[:, None]
        corrections: Doubles = np.rint((wanted - coarse) / grid)
        corrected = coarse + corrections * grid
        top = wanted.argmax(axis=1)
        # The strongest rival of the largest label, as a decoder will see it.
        others = (integers * np.float32(self.step)) @ self.basis
        others += self.mean
        np.put_along_axis(others, places, corrected.astype(np.float32), axis=1)
        others[rows, places[rows, top]] = -np.inf
        rival = others.argmax(axis=1)
        height = self._exactly(integers, rival[:, None])[:, 0]
        is_peak = places == rival[:, None]
        height = np.where(is_peak.any(axis=1), (corrected * is_peak).sum(axis=1), height)
        lift = np.maximum(np.ceil(LEAD - (corrected[rows, top] - height) / grid), 0)
        # Equals may change places: neither was the largest alone.
        beaten = logits[rows, rival] < logits[rows, places[rows, top]]
        corrections[rows, top] += np.where(beaten, lift, 0)
        return corrections

    def _exactly(self, integers: FloatArray, places: npt.NDArray[np.intp]) -> Doubles:
        """Return the rebuilt labels [B, n] of some classes [B, n] in double precision."""
        columns = self._columns[places]
        products = np.einsum("bl,bnl->bn", integers.astype(np.float64), columns)
        return np.asarray(self.mean[places] + self.step * products)

    @cached_property
    def _columns(self) -> Doubles:
        return np.ascontiguousarray(self.basis.T, np.float64)
