"""One uniform grid per label row: value = offset + scale * code, computed in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs import arrow_memory
from lpld_labels.codecs.float16 import converted
from lpld_labels.errors import InvalidBatchError, PoolCorruptError
from lpld_labels.format.records import LabelArray

_WIDEST = 0.99 * float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowGrid:
    """Rows of codes with the grid each row lies on.

    codes: uint8 [B, n]. scale, offset: float16 or float32 [B]; scale is 0 for a constant row.
    """

    codes: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.floating[Any]]
    offset: npt.NDArray[np.floating[Any]]

    @staticmethod
    def fit(values: LabelArray, *, bits: int, dtype: npt.DTypeLike) -> RowGrid:
        """Lay 2^bits levels over the range of each row of `values`, float16/float32 [B, n].

        The grid's own numbers are rounded outwards to `dtype`, so that it always spans the row and no
        value is further than half a step from its level (plus float32 rounding).
        """
        levels = (1 << bits) - 1
        rows = converted(values, np.float32)
        offset = _rounded(rows.min(axis=1).astype(np.float64), dtype, down=True)
        spread = rows.max(axis=1).astype(np.float64) - offset
        scale = _rounded(spread / levels, dtype, down=False)
        if spread.max(initial=0.0) > _WIDEST:
            # Decoders compute scale * code in float32, which must not overflow.
            raise InvalidBatchError(
                "range of a label row is too large for its grid",
                expected=f"at most {_WIDEST:.3g}",
                got=float(spread.max()),
                hint="use codec 'f32'",
            )
        # A constant row has range 0; any positive step stores it exactly.
        step = np.where(scale > 0, scale, 1)
        codes = rows - offset.astype(np.float32)[:, None]
        codes /= step.astype(np.float32)[:, None]
        np.rint(codes, out=codes)
        return RowGrid(codes=np.clip(codes, 0, levels).astype(np.uint8), scale=scale, offset=offset)

    def check(self, *, bits: int, label_kind: str) -> None:
        """Refuse grids read from a file unless all that lies on them is finite, and no negative probability.

        Looks at each row's grid; at its codes only where the grid itself reaches too far.
        """
        scale, offset = self.scale.astype(np.float32), self.offset.astype(np.float32)
        if not (np.isfinite(scale).all() and np.isfinite(offset).all() and (scale >= 0).all()):
            raise PoolCorruptError(
                "columns 'scale' and 'offset' are out of range", expected="finite, scale at least 0"
            )
        with np.errstate(over="ignore"):
            finite = np.isfinite(offset + scale * np.float32((1 << bits) - 1))
            if not finite.all() and not np.isfinite(self.values()[~finite]).all():
                raise PoolCorruptError("a label is not finite", expected="finite values")
        if label_kind == "probabilities" and (offset < 0).any():
            lowest = float(self.values().min())
            if lowest < 0:
                raise PoolCorruptError("a probability is negative", expected="at least 0", got=lowest)

    def values(self) -> npt.NDArray[np.float32]:
        """Return the values the codes stand for, float32 [B, n]."""
        values = arrow_memory.converted_copy(self.codes, np.float32)
        values *= self.scale.astype(np.float32)[:, None]
        values += self.offset.astype(np.float32)[:, None]
        return values

    def halves(self, *, bits: int) -> npt.NDArray[np.float16]:
        """Return the same values as float16 [B, n].

        Rounding the levels of each row and looking codes up is faster than rounding every value.
        """
        levels = RowGrid(
            codes=np.broadcast_to(np.arange(1 << bits, dtype=np.uint8), (len(self.codes), 1 << bits)),
            scale=self.scale,
            offset=self.offset,
        )
        table = converted(levels.values(), np.float16)
        first = np.arange(len(self.codes), dtype=np.intp)[:, None] << bits
        place = np.add(self.codes, first, out=arrow_memory.empty(self.codes.shape, np.intp))
        # Codes of damaged rows cannot reach outside the table: they are bits wide by construction.
        halves = arrow_memory.empty(self.codes.shape, np.float16)
        np.take(table.reshape(-1), place, out=halves, mode="clip")
        return halves


def _rounded(
    exact: npt.NDArray[np.float64], dtype: npt.DTypeLike, *, down: bool
) -> npt.NDArray[np.floating[Any]]:
    """Return the nearest `dtype` values at or below (else at or above) the exact ones."""
    with np.errstate(over="ignore"):
        near: npt.NDArray[np.floating[Any]] = exact.astype(dtype)
    limit = near.dtype.type(-np.inf if down else np.inf)
    beyond = near > exact if down else near < exact
    rounded = np.where(beyond, np.nextafter(near, limit), near)
    if not np.isfinite(rounded).all():
        raise InvalidBatchError(
            "label too large for its grid",
            expected=f"at most {np.finfo(near.dtype).max}",
            got=float(np.abs(exact).max()),
            hint="use codec 'f32'",
        )
    return rounded
