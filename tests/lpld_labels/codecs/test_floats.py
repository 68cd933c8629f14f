"""Half-precision conversion agrees with NumPy bit for bit."""

import numpy as np

from lpld_labels.codecs.floats import converted, to_float32

EVERY_HALF = np.arange(65536, dtype=np.uint16).view(np.float16)
EVERY_HALF = EVERY_HALF[np.isfinite(EVERY_HALF)]


def test_every_half_becomes_the_same_single() -> None:
    assert (to_float32(EVERY_HALF).view(np.uint32) == EVERY_HALF.astype(np.float32).view(np.uint32)).all()


def test_overflow_is_infinite() -> None:
    assert np.isinf(converted(np.array([1e6, 1.0], np.float32), np.float16)).tolist() == [True, False]


def test_same_dtype_is_not_copied() -> None:
    values = np.ones(3, np.float32)
    assert converted(values, np.float32) is values
    assert converted(values, np.float64).dtype == np.float64
