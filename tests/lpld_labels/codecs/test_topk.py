from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels.codecs import codec_named
from lpld_labels.codecs.label_semantics import softmax
from lpld_labels.codecs.topk import NO_MASS, TopKCodec
from lpld_labels.errors import InvalidArgumentError, InvalidBatchError, PoolCorruptError
from tests.label_factory import make_logits, make_probabilities


@given(
    rows=st.integers(1, 9),
    classes=st.integers(2, 60),
    share=st.floats(0, 1),
    bits=st.sampled_from([8, 16, 32]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_largest_kept_and_rest_level(rows: int, classes: int, share: float, bits: int, seed: int) -> None:
    k = 1 + int(share * (classes - 1))
    codec = TopKCodec(k=k, value_bits=bits)
    labels = make_logits(rows, classes, seed=seed)
    encoded = codec.encode(labels)
    decoded = codec.decode(encoded.payload, rows=rows, classes=classes)
    canonical = codec.canonical(encoded.payload, rows=rows, classes=classes)
    assert [bytes(part) for part in encoded.canonical] == [bytes(part) for part in canonical]
    sparse = codec.sparse(encoded.payload, rows=rows, classes=classes)
    assert (np.diff(sparse.values.astype(np.float64), axis=1) <= 0).all()
    kept = np.take_along_axis(labels, sparse.indices, axis=1).astype(np.float64)
    tolerance = (kept.max() - kept.min()) / 255 * 0.51 + 0.01 if bits == 8 else 0.0
    np.testing.assert_allclose(sparse.values.astype(np.float64), kept, atol=tolerance, rtol=0)
    missing = np.ones(labels.shape, bool)
    np.put_along_axis(missing, sparse.indices, False, axis=1)
    rest = np.where(missing, labels.astype(np.float64), -np.inf).max(axis=1)
    assert (rest <= kept.min(axis=1)).all(), "nothing that was left out is larger than what was kept"
    assert (sparse.tail is None) == (k == classes)
    if sparse.tail is not None:
        for row in range(rows):
            assert np.unique(decoded[row][missing[row]]).tolist() == [sparse.tail[row]]


def test_equal_values_keep_the_lower_class_and_order_is_cheap() -> None:
    codec = TopKCodec(k=2)
    payload = codec.encode(np.array([[1, 2, 2, 2, 0]], np.float16)).payload
    assert codec.sparse(payload, rows=1, classes=5).indices.tolist() == [[1, 2]]
    codec = TopKCodec(k=50)
    payload = codec.encode(np.random.default_rng(0).normal(0, 2, (128, 1000)).astype(np.float16)).payload
    # 16-bit indices would take 100 bytes a row; which 50 of 1000 is 35 bytes of information.
    assert len(payload["gaps"][0].as_buffer()) / 128 < 40
    sparse = codec.sparse(payload, rows=128, classes=1000)
    again = codec.encode_sparse(sparse.values, sparse.indices, sparse.tail, classes=1000)
    assert not again.payload["order"][0].is_valid


def test_the_tail_holds_its_mass_at_temperature_one() -> None:
    labels = make_logits(32, 200, dtype=np.float32)
    codec = TopKCodec(k=20, value_bits=32)
    payload = codec.encode(labels).payload
    indices = codec.sparse(payload, rows=32, classes=200).indices
    decoded = codec.decode(payload, rows=32, classes=200)
    kept, true = (np.take_along_axis(softmax(z), indices, axis=1) for z in (decoded, labels))
    np.testing.assert_allclose(kept, true, rtol=2e-3)
    codec = TopKCodec(k=5, value_bits=32, label_kind="probabilities")
    payload = codec.encode(make_probabilities(8, 50, dtype=np.float32)).payload
    np.testing.assert_allclose(codec.decode(payload, rows=8, classes=50).sum(axis=1), 1, atol=1e-3)


def test_imported_entries_come_back_in_their_order() -> None:
    """Entries as torch.topk leaves them: by falling float32 value, then rounded, so that ties stay."""
    labels = np.random.default_rng(0).normal(0, 2, (6, 1000)).astype(np.float32)
    indices = np.argsort(-labels, axis=1)[:, :50].astype(np.int32)
    values = np.round(np.take_along_axis(labels, indices, axis=1), 1).astype(np.float16)
    codec, canonical = TopKCodec(k=50), []
    for step in (1, -1):
        encoded = codec.encode_sparse(values[:, ::step], indices[:, ::step], None, classes=1000)
        assert encoded.payload["order"][0].is_valid, "rounded values tie, so sorting alone is not enough"
        found = codec.sparse(encoded.payload, rows=6, classes=1000)
        np.testing.assert_array_equal(found.values, values[:, ::step])
        np.testing.assert_array_equal(found.indices, indices[:, ::step])
        assert found.tail is None
        canonical.append([bytes(part) for part in encoded.canonical])
    assert canonical[0] == canonical[1], "the order is no part of the label"
    # Without a tail, missing classes have no mass.
    decoded = codec.decode(encoded.payload, rows=6, classes=1000, dtype=np.float16)
    assert (decoded == np.float16(NO_MASS["logits"])).sum() == 6 * 950
    mass = np.take_along_axis(softmax(decoded.astype(np.float32) / np.float32(20)), indices, axis=1)
    np.testing.assert_allclose(mass.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("spelling", ["topk", "topk:0", "topk:x", "topk:5:7", "topk:5:16:1", "top"])
def test_bad_spellings(spelling: str) -> None:
    with pytest.raises(InvalidArgumentError):
        codec_named(spelling)


VALUES, INDICES = np.array([[3, 2, 1]], np.float16), np.array([[0, 1, 2]], np.int32)


@pytest.mark.parametrize(
    ("values", "indices", "words"),
    [
        (VALUES, INDICES + 8, "out of range"),
        (VALUES, INDICES - 1, "out of range"),
        (VALUES, INDICES // 2, "twice"),
        (VALUES[:, :2], INDICES[:, :2], "shape"),
        (VALUES.astype(np.float32), INDICES, "dtype"),
        (VALUES * np.float16(np.nan), INDICES, "finite"),
    ],
)
def test_bad_entries(values: npt.NDArray[Any], indices: npt.NDArray[Any], words: str) -> None:
    with pytest.raises(InvalidBatchError, match=words):
        TopKCodec(k=3).encode_sparse(values, indices, None, classes=10)


def test_bad_labels_and_damaged_payloads() -> None:
    codec = TopKCodec(k=3)
    with pytest.raises(InvalidArgumentError, match="more entries than there are classes"):
        codec.encode(np.zeros((1, 2), np.float16))
    with pytest.raises(InvalidBatchError, match="32-bit"):
        codec.encode(np.full((1, 5), 1e6, np.float32))
    payload = codec.encode(make_logits(4, 10)).payload
    with pytest.raises(PoolCorruptError, match="out of range"):
        codec.decode(payload, rows=4, classes=4)
    blob = payload["gaps"][0].as_py()
    for damaged in (blob[:-4], blob + blob, b"", b"nonsense"):
        with pytest.raises(PoolCorruptError):
            codec.decode({**payload, "gaps": pa.array([damaged], pa.binary())}, rows=4, classes=10)
