import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels.codecs.packing import band_edges, pack_bands, pack_integers, unpack_bands, unpack_integers
from lpld_labels.errors import InvalidBatchError, PoolCorruptError


@given(rows=st.integers(1, 40), columns=st.integers(1, 50), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_bands_round_trip(rows: int, columns: int, seed: int) -> None:
    spreads = np.geomspace(50, 0.1, columns)
    values = np.rint(np.random.default_rng(seed).laplace(0, spreads, (rows, columns)))
    edges = band_edges(spreads, rows)
    assert edges[0] == 0
    assert edges[-1] == columns
    assert list(edges) == sorted(set(edges))
    names = [f"band_{k}" for k in range(len(edges) - 1)]
    np.testing.assert_array_equal(
        unpack_bands(pack_bands(values, edges), edges, rows, names=names), values.astype(np.int16)
    )


def test_bands_are_wide_enough_to_pay_their_headers() -> None:
    spreads = np.geomspace(10, 0.01, 500)
    assert len(band_edges(spreads, 128)) > len(band_edges(spreads, 4))
    assert band_edges(np.ones(100), 128) == (0, 100)


def test_damaged_bands_are_refused() -> None:
    blob = pack_integers(np.arange(100, dtype=np.int16))
    for length in (50, 101):
        with pytest.raises(PoolCorruptError, match="wrong length"):
            unpack_integers(blob, (length,), where="band_0")
    for damaged in (b"", b"nonsense", blob[: len(blob) // 2]):
        with pytest.raises(PoolCorruptError, match="band_0"):
            unpack_integers(damaged, (100,), where="band_0")
    with pytest.raises(InvalidBatchError, match="far outside"):
        pack_integers(np.array([40_000.0]))
