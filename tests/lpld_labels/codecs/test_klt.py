"""Transform-coded labels: fitting, bounds and bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from lpld_labels.codecs import restore_codec
from lpld_labels.codecs.fidelity import try_codec
from lpld_labels.codecs.klt import ROUNDING, KltCodec
from lpld_labels.codecs.klt_fit import EXACT_CLASSES, KltFitter, find_spectrum
from lpld_labels.errors import InvalidArgumentError, InvalidBatchError, ManifestError, PoolCorruptError
from lpld_labels.format.manifest import CodecEntry
from tests.label_factory import make_logits, make_probabilities

Labels = npt.NDArray[Any]


def fitter(classes: int = 60, *, rows: int = 100_000, blocks: int = 6, **options: Any) -> KltFitter:
    """Return a fitter for made-up logits."""
    made = [make_logits(64, classes, seed=seed) for seed in range(blocks)]
    return KltFitter(fit=made[:-2], tune=made[-2:], rows=rows, batch_size=64, **options)


def restored(codec: KltCodec) -> KltCodec:
    entry = CodecEntry(name="klt", parameters=codec.parameters())
    again = restore_codec(
        entry, codec.tables(), classes=codec.basis.shape[1], label_kind=codec.label_kind, where="pool.json"
    )
    assert isinstance(again, KltCodec)
    return again


# Directions


def test_directions_are_orthonormal_and_ordered_and_shift_free() -> None:
    spectrum = find_spectrum([make_logits(200, 50, rank=8, seed=s) for s in range(3)])
    gram = spectrum.directions @ spectrum.directions.T
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-4)
    assert (np.diff(spectrum.spreads) <= 0).all()
    assert np.abs(spectrum.directions.sum(axis=1)).max() < 1e-2
    assert spectrum.spreads[7] > 5 * spectrum.spreads[9], "eight directions stand out of the noise"


def test_many_classes_are_fitted_by_their_range() -> None:
    classes = EXACT_CLASSES + 152
    blocks = [make_logits(128, classes, rank=20, seed=s, noise=0) for s in range(4)]
    spectrum = find_spectrum(blocks)
    again = find_spectrum(blocks)
    np.testing.assert_array_equal(spectrum.directions, again.directions)
    held = make_logits(64, classes, rank=20, seed=9, noise=0).astype(np.float32) - spectrum.mean
    held -= held.mean(axis=1, keepdims=True)
    left = held - held @ spectrum.directions.T @ spectrum.directions
    assert (left**2).sum() < 1e-5 * (held**2).sum()


# The codec


def test_error_follows_from_the_step() -> None:
    codec = fitter().codec(0.05)
    labels = make_logits(64, 60, seed=77)
    decoded = codec.decode(codec.encode(labels).payload, rows=64, classes=60)
    # An orthonormal basis keeps squared error: at most (1 - rounding) of a step per coefficient.
    error = ((decoded - labels.astype(np.float32)) ** 2).mean()
    assert error < 2 * 0.05**2 / 12 * codec.dimensions / 60 + 0.06**2


@pytest.mark.parametrize("peaks", [1, 4, 16])
@pytest.mark.parametrize("step", [0.3, 2.0, 9.0])
def test_peaks_come_back_and_the_largest_stays_the_largest(step: float, peaks: int) -> None:
    codec = fitter().codec(step, peaks=peaks)
    labels = np.concatenate([make_logits(64, 60, seed=seed) for seed in range(20, 26)])
    decoded = codec.decode(codec.encode(labels).payload, rows=len(labels), classes=60)
    chosen = np.take_along_axis(labels, decoded.argmax(axis=1)[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(chosen, labels.max(axis=1))
    order = np.argsort(-labels.astype(np.float32), axis=1, kind="stable")[:, 1:peaks]
    true = np.take_along_axis(labels, order, axis=1).astype(np.float32)
    # All but the largest, which may have been lifted over a rival, are within half a grid of the truth.
    # (Up to the rounding of the row's mean, which shifts all classes alike.)
    coded = codec.step * codec.numbers(labels).integers[:, 0] / math.sqrt(60)
    shift = (labels.astype(np.float32) - codec.mean).mean(axis=1) - coded
    found = np.take_along_axis(decoded, order, axis=1) + shift[:, None]
    np.testing.assert_allclose(found, true, atol=step / 16 + 1e-4)


def test_more_peaks_keep_more_at_low_temperature() -> None:
    fitted = fitter()
    kept = [fitted.measure(fitted.codec(12.0, peaks=peaks)).kept[1] for peaks in (0, 1, 4, 15)]
    assert kept == sorted(kept)
    assert kept[2] > kept[0] + 0.05


def test_without_peaks_there_are_no_columns_for_them() -> None:
    codec = fitter().codec(0.5, peaks=0)
    assert not [column for column in codec.payload_columns(60) if column.name.startswith("peak")]
    labels = make_logits(8, 60)
    assert codec.decode(codec.encode(labels).payload, rows=8, classes=60).shape == (8, 60)


@pytest.mark.parametrize("step", [0.001, 0.1, 3.0])
def test_integers_are_exact_whatever_multiplies(step: float) -> None:
    codec = fitter().codec(step)
    labels = np.concatenate([make_logits(64, 60, seed=seed) for seed in range(20)])
    basis = codec.basis.astype(np.float64)
    projection = np.linalg.solve(basis @ basis.T, basis).T
    exact = (labels.astype(np.float32) - codec.mean).astype(np.float64) @ projection
    expected = np.sign(exact) * np.floor(np.abs(exact) / codec.step + ROUNDING)
    np.testing.assert_array_equal(codec.numbers(labels).integers, expected)


def test_the_row_mean_is_kept() -> None:
    codec = fitter().for_fidelity(0.95, temperature=20)
    labels = make_logits(64, 60, seed=5).astype(np.float32) + np.linspace(-4, 4, 64)[:, None]
    decoded = codec.decode(codec.encode(labels).payload, rows=64, classes=60)
    assert np.abs((decoded - labels).mean(axis=1)).max() <= codec.step / math.sqrt(60)


def test_decoding_elsewhere_is_one_matrix_product() -> None:
    codec = fitter().for_fidelity(0.97, temperature=1)
    payload = codec.encode(make_logits(64, 60, seed=5)).payload
    coefficients, classes, peaks = codec.split(payload, rows=64, classes=60)
    assert coefficients.dtype == np.float32
    assert coefficients.shape == (64, codec.dimensions)
    labels = codec.mean + coefficients @ codec.basis
    for row in range(64):
        labels[row, classes[row]] += peaks[row]
    np.testing.assert_allclose(labels, codec.decode(payload, rows=64, classes=60), rtol=1e-5, atol=1e-5)


def test_a_restored_codec_is_the_same() -> None:
    codec = fitter().for_fidelity(0.97, temperature=20)
    again = restored(codec)
    labels = make_logits(64, 60, seed=5)
    first, second = codec.encode(labels), again.encode(labels)
    assert first.payload == second.payload
    assert [bytes(p) for p in first.canonical] == [
        bytes(p) for p in again.canonical(second.payload, rows=64, classes=60)
    ]
    assert again.identity() == codec.identity()
    assert again.tables() == codec.tables()
    assert again.parameters() == codec.parameters()
    assert codec.identity() != fitter().for_fidelity(0.9, temperature=20).identity()
    assert fitter().codec(1.0).identity() != fitter().codec(1.0, peaks=2).identity()


def test_batches_decode_alone() -> None:
    codec = fitter().for_fidelity(0.97, temperature=20)
    labels = make_logits(64, 60, seed=5)
    whole = codec.decode(codec.encode(labels).payload, rows=64, classes=60)
    for rows in (slice(0, 1), slice(3, 40)):
        part = codec.encode(labels[rows])
        count = len(labels[rows])
        np.testing.assert_allclose(
            codec.decode(part.payload, rows=count, classes=60), whole[rows], rtol=1e-4, atol=1e-4
        )


def test_probabilities_decode_to_probabilities() -> None:
    blocks = [make_probabilities(64, 30, seed=seed) for seed in range(6)]
    fitted = KltFitter(
        fit=blocks[:4], tune=blocks[4:], rows=100_000, batch_size=64, label_kind="probabilities"
    )
    codec = fitted.for_fidelity(0.98, temperature=1)
    decoded = codec.decode(codec.encode(blocks[5]).payload, rows=64, classes=30)
    np.testing.assert_allclose(decoded.sum(axis=1), 1, rtol=1e-5)
    assert (decoded >= 0).all()
    assert np.abs(decoded - blocks[5].astype(np.float32)).mean() < 0.01


# Meeting a demand


@pytest.mark.parametrize(("fidelity", "temperature"), [(0.9, 20.0), (0.97, 20.0), (0.99, 1.0), (0.999, 4.0)])
def test_fidelity_is_met_and_not_exceeded_for_nothing(fidelity: float, temperature: float) -> None:
    fitted = fitter()
    codec = fitted.for_fidelity(fidelity, temperature=temperature)
    kept = fitted.measure(codec, temperatures=(temperature,)).kept[temperature]
    assert fidelity <= kept < fidelity + 0.05 * (1 - fidelity) + 1e-4


def test_small_pools_get_a_smaller_basis() -> None:
    sizes = []
    for rows in (500, 10_000, 10_000_000):
        codec = fitter(rows=rows).for_fidelity(0.97, temperature=20)
        sizes.append(len(codec.tables()["basis.pco"]))
    assert sizes[0] < sizes[1] < sizes[2]


def test_fitting_is_deterministic() -> None:
    first, second = (fitter().for_fidelity(0.97, temperature=20) for _ in range(2))
    assert first.identity() == second.identity()
    assert first.tables() == second.tables()


# Bad input


@pytest.mark.parametrize("fidelity", [0.0, 1.0, -0.5, 1.5, math.nan])
def test_fidelity_outside_zero_to_one(fidelity: float) -> None:
    with pytest.raises(InvalidArgumentError, match="between 0 and 1"):
        fitter(blocks=3).for_fidelity(fidelity, temperature=20)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_bad_temperatures(temperature: float) -> None:
    with pytest.raises(InvalidArgumentError, match="temperature"):
        fitter(blocks=3).for_fidelity(0.9, temperature=temperature)


@pytest.mark.parametrize("step", [0.0, -1.0, math.nan, math.inf])
def test_bad_steps(step: float) -> None:
    with pytest.raises(InvalidArgumentError, match="step"):
        fitter(blocks=3).codec(step)


def constant(value: float) -> Labels:
    return np.full((32, 10), value, np.float16)


@pytest.mark.parametrize(
    "blocks",
    [
        [constant(0.0)] * 4,
        [constant(3.5), constant(-2.0), constant(1.0), constant(0.25)],
        [np.tile(np.arange(10, dtype=np.float16), (32, 1))] * 4,
    ],
    ids=["zero", "constant rows", "one label for all"],
)
def test_labels_without_variety(blocks: list[Labels]) -> None:
    fitted = KltFitter(fit=blocks[:2], tune=blocks[2:], rows=128, batch_size=32)
    codec = restored(fitted.for_fidelity(0.97, temperature=20))
    for block in blocks:
        decoded = codec.decode(codec.encode(block).payload, rows=32, classes=10)
        # Softmax sees no shift of a whole row; what it sees must be right.
        centred = decoded - decoded.mean(axis=1, keepdims=True)
        expected = block.astype(np.float32) - block.astype(np.float32).mean(axis=1, keepdims=True)
        np.testing.assert_allclose(centred, expected, atol=0.01)


def test_labels_of_one_class() -> None:
    """Every row is sure of the same class; what differs is small but not lost."""
    blocks = [make_logits(64, 20, seed=s) * np.float16(0.1) for s in range(4)]
    for block in blocks:
        block[:, 3] += np.float16(20)
    fitted = KltFitter(fit=blocks[:2], tune=blocks[2:], rows=256, batch_size=64)
    codec = fitted.for_fidelity(0.97, temperature=20)
    trial = try_codec(codec, blocks, batch_size=64)
    assert trial.fidelity.top1 == 1
    assert trial.fidelity.kept[20] > 0.96


def test_more_classes_than_rows() -> None:
    blocks = [make_logits(20, 300, rank=5, noise=0, seed=s) for s in range(2)]
    fitted = KltFitter(fit=blocks[:1], tune=blocks[1:], rows=40, batch_size=20)
    codec = fitted.for_fidelity(0.9, temperature=20)
    assert codec.dimensions <= 20
    # Noise in 300 directions cannot be learnt from 20 rows: that is said, with what could be had.
    noisy = [np.random.default_rng(s).normal(0, 2, (20, 300)).astype(np.float16) for s in range(2)]
    fitted = KltFitter(fit=noisy[:1], tune=noisy[1:], rows=40, batch_size=20)
    with pytest.raises(InvalidArgumentError, match=r"cannot keep that much.*at most"):
        fitted.for_fidelity(0.9, temperature=20)


def test_too_few_labels() -> None:
    with pytest.raises(InvalidArgumentError, match="too few"):
        KltFitter(fit=[make_logits(1, 10)], tune=[make_logits(1, 10)[:0]], rows=1, batch_size=1)


def test_labels_far_outside_the_sample_are_refused() -> None:
    codec = fitter().for_fidelity(0.97, temperature=20)
    with pytest.raises(InvalidBatchError, match="far outside"):
        codec.encode(make_logits(4, 60, dtype=np.float32) * 1e6)


def test_wrong_parameters_and_tables() -> None:
    codec = fitter(blocks=3).codec(0.5)
    parameters, tables = codec.parameters(), codec.tables()

    def refused(error: type[Exception], match: str, *, tables: dict[str, bytes], **changes: Any) -> None:
        entry = CodecEntry(name="klt", parameters={**parameters, **changes})
        with pytest.raises(error, match=match):
            restore_codec(
                entry, tables, classes=codec.basis.shape[1], label_kind=codec.label_kind, where="pool.json"
            )

    refused(ManifestError, "step", tables=tables, step=0)
    refused(ManifestError, "edge", tables=tables, edges=[0, 2])
    refused(ManifestError, "edge", tables=tables, edges=[0, 5, 3])
    refused(ManifestError, "peaks", tables=tables, peaks=61)
    refused(ManifestError, "peaks", tables=tables, peaks=-1)
    refused(ManifestError, "label_kind", tables=tables, label_kind="odds")
    refused(ManifestError, "'more' is unknown", tables=tables, more=1)
    refused(PoolCorruptError, "missing", tables={})
    refused(PoolCorruptError, "corrupt", tables={**tables, "mean.npy": b"nonsense"})
    refused(PoolCorruptError, "wrong type", tables={**tables, "mean.npy": tables["scale.npy"]})
    refused(PoolCorruptError, "basis.pco", tables={**tables, "basis.pco": b"nonsense"})
    payload = dict(codec.encode(make_logits(4, 60)).payload)
    with pytest.raises(PoolCorruptError, match="another number of classes"):
        codec.decode(payload, rows=4, classes=61)
    for name in ("band_0", "peak_gaps", "peak_values"):
        damaged = {**payload, name: pa.array([b"nonsense"], pa.binary())}
        with pytest.raises(PoolCorruptError, match=name):
            codec.decode(damaged, rows=4, classes=60)


def test_labels_that_overflow_are_refused_without_a_warning() -> None:
    labels = make_logits(8, 60)
    codec = fitter().codec(0.5)
    payload = codec.encode(labels).payload
    codec.basis = np.full_like(codec.basis, 3e38)
    with pytest.raises(PoolCorruptError, match="not finite"):
        codec.decode(payload, rows=8, classes=60)


@pytest.mark.parametrize("largest", [65_505, 1e20, 3e38])
def test_labels_beyond_half_precision_are_refused(largest: float) -> None:
    labels = make_logits(64, 20)
    labels = labels.astype(np.float32)
    labels[5, 3] = largest
    with pytest.raises(InvalidArgumentError, match="labels are too large for codec 'klt'"):
        KltFitter(fit=[labels], tune=[labels], rows=64, batch_size=64)
    assert KltFitter(fit=[labels.clip(max=65_504)], tune=[labels[:3]], rows=64, batch_size=64)
