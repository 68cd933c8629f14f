import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lpld_labels.codecs import codec_named
from lpld_labels.codecs.affine import RowGrid, pack_bits, packed_width, unpack_bits
from lpld_labels.errors import InvalidBatchError, PoolCorruptError
from tests.label_factory import make_logits

LARGEST = 2.0**126  # Rows may span twice this; float32 ends at four times.
BITS = {"int8": 8, "int6": 6, "int4": 4}


@given(
    bits=st.sampled_from([4, 6, 8]), rows=st.integers(1, 5), count=st.integers(1, 70), seed=st.integers(0, 9)
)
@settings(max_examples=60, deadline=None)
def test_packing_round_trip(bits: int, rows: int, count: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (rows, count)).astype(np.uint8)
    packed = pack_bits(codes, bits)
    assert packed.shape == (rows, packed_width(count, bits))
    np.testing.assert_array_equal(unpack_bits(packed, bits, count), codes)


@pytest.mark.parametrize("name", BITS)
@given(labels=hnp.arrays(np.float32, (3, 17), elements=st.floats(-LARGEST, LARGEST, width=32)))
@settings(max_examples=60, deadline=None)
def test_error_is_at_most_half_a_step(name: str, labels: npt.NDArray[np.float32]) -> None:
    codec = codec_named(name)
    payload = codec.encode(labels).payload
    exact = labels.astype(np.float64)
    decoded = codec.decode(payload, rows=3, classes=17).astype(np.float64)
    step = (exact.max(axis=1) - exact.min(axis=1)) / ((1 << BITS[name]) - 1)
    rounding = np.spacing(np.abs(labels).max(axis=1)).astype(np.float64) * 4 + np.spacing(step) * 300
    assert (np.abs(decoded - exact) <= (step / 2 + rounding)[:, None]).all()


@pytest.mark.parametrize("name", BITS)
def test_constant_rows_are_exact_and_too_wide_ones_refused(name: str) -> None:
    codec = codec_named(name)
    labels = np.full((2, 9), 3.25, np.float16)
    np.testing.assert_array_equal(codec.decode(codec.encode(labels).payload, rows=2, classes=9), labels)
    wide = np.full((2, 9), 2.0**127, np.float32)
    wide[1, 3] *= -1
    with pytest.raises(InvalidBatchError, match="use codec 'f32'"):
        codec.encode(wide)


@pytest.mark.parametrize("name", BITS)
def test_canonical_bytes_survive_packing(name: str) -> None:
    codec = codec_named(name)
    encoded = codec.encode(make_logits(5, 33))
    again = codec.canonical(encoded.payload, rows=5, classes=33)
    assert [bytes(part) for part in again] == [bytes(part) for part in encoded.canonical]
    with pytest.raises(PoolCorruptError, match="wrong shape"):
        codec.decode(encoded.payload, rows=5, classes=35)


def test_a_half_precision_grid_spans_its_row() -> None:
    values = np.random.default_rng(0).normal(5, 3, (50, 40)).astype(np.float32)
    grid = RowGrid.fit(values, bits=8, dtype=np.float16)
    assert (np.abs(grid.values() - values) <= grid.scale.astype(np.float32)[:, None] / 2 + 1e-5).all()
    with pytest.raises(InvalidBatchError, match="too large"):
        RowGrid.fit(values * 1e6, bits=8, dtype=np.float16)
