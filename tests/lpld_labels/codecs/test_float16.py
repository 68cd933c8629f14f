"""Half-precision conversion agrees with NumPy bit for bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lpld_labels.codecs.float16 import converted, to_float16, to_float32

EVERY_HALF = np.arange(65536, dtype=np.uint16).view(np.float16)
EVERY_HALF = EVERY_HALF[np.isfinite(EVERY_HALF)]


def test_every_half_becomes_the_same_single() -> None:
    assert (to_float32(EVERY_HALF).view(np.uint32) == EVERY_HALF.astype(np.float32).view(np.uint32)).all()


def test_ties_and_their_neighbours_round_as_numpy_rounds() -> None:
    ordered = np.unique(EVERY_HALF.astype(np.float32))
    ties = (ordered[:-1] + ordered[1:]) / 2
    values = np.concatenate(
        [ties, np.nextafter(ties, np.float32(-np.inf)), np.nextafter(ties, np.float32(np.inf))]
    )
    assert (to_float16(values).view(np.uint16) == values.astype(np.float16).view(np.uint16)).all()


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3), elements=st.floats(-60000, 60000, width=32)))
def test_any_single_rounds_as_numpy_rounds(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    found = to_float16(values)
    assert found.shape == values.shape
    assert (found.view(np.uint16) == values.astype(np.float16).view(np.uint16)).all()


def test_overflow_is_infinite() -> None:
    assert np.isinf(to_float16(np.array([1e6, 1.0], np.float32))).tolist() == [True, False]


def test_same_dtype_is_not_copied() -> None:
    values = np.ones(3, np.float32)
    assert converted(values, np.float32) is values
    assert converted(values, np.float64).dtype == np.float64
