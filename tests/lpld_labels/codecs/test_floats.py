"""Half-precision conversion agrees with NumPy bit for bit."""

import numpy as np

from lpld_labels.codecs.floats import converted, to_float32


def test_every_half_becomes_the_same_single() -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    assert (to_float32(halves).view(np.uint32) == halves.astype(np.float32).view(np.uint32)).all()


def test_conversions() -> None:
    assert np.isinf(converted(np.array([1e6, 1.0], np.float32), np.float16)).tolist() == [True, False]
    values = np.ones(3, np.float32)
    assert converted(values, np.float32) is values
    assert converted(values, np.float64).dtype == np.float64
