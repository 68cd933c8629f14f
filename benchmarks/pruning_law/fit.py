"""Fitting the law of what a pruning costs.

The share lost is 1 - exp(-rate) with
rate = scale * views_before ** -views_exponent * (ratio - 1) ** ratio_exponent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.pruning_law.rows import Row

LEAST_LOSS = 0.003
"""Below this share the noise of one student decides, and its logarithm says nothing."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """The constants. log_error: spread of ln(measured / expected) over the rows of the fit."""

    scale: float
    views_exponent: float
    ratio_exponent: float
    log_error: float


def usable(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose loss can be told from noise."""
    return [row for row in rows if row.loss >= LEAST_LOSS]


def fit(rows: Sequence[Row]) -> Law:
    """Return the law of least squares in the logarithm of the rate.

    Every row counts alike: where data sets did, two rows of one would bend the law as much as twenty of
    another, and it told less of data that it had not seen.
    """
    terms = _terms(rows)
    (constant, views, ratio), *_ = np.linalg.lstsq(terms, _log_rates(rows), rcond=None)
    gaps = _log_rates(rows) - terms @ np.array([constant, views, ratio])
    return Law(
        scale=float(np.exp(constant)),
        views_exponent=float(-views),
        ratio_exponent=float(ratio),
        log_error=float(np.sqrt(np.mean(gaps**2))),
    )


def errors(law: Law, rows: Sequence[Row]) -> np.ndarray:
    """Return ln(measured / expected) of every row, float64 [rows]."""
    constants = np.array([np.log(law.scale), -law.views_exponent, law.ratio_exponent])
    found: np.ndarray = _log_rates(rows) - _terms(rows) @ constants
    return found


def unseen_errors(rows: Sequence[Row]) -> dict[str, float]:
    """Return, for each data set, the root mean square error of a law fitted to all others."""
    found = {}
    for data in sorted({row.data for row in rows}):
        others = [row for row in rows if row.data != data]
        own = [row for row in rows if row.data == data]
        found[data] = float(np.sqrt(np.mean(errors(fit(others), own) ** 2)))
    return found


def _log_rates(rows: Sequence[Row]) -> np.ndarray:
    found: np.ndarray = np.log(-np.log1p(-np.array([row.loss for row in rows])))
    return found


def _terms(rows: Sequence[Row]) -> np.ndarray:
    """Return (1, ln views_before, ln (ratio - 1)) of every row, the ratio that of the views."""
    before = np.array([row.views_before for row in rows])
    views = np.array([row.views for row in rows])
    return np.column_stack([np.ones(len(rows)), np.log(before), np.log(before / views - 1)])
