import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from benchmarks.common.label_source import real_batches
from lpld_labels.codecs import codec_named, restore_codec
from lpld_labels.codecs.fidelity import Trial, try_codec
from lpld_labels.codecs.klt import ROUNDING, KltCodec
from lpld_labels.codecs.klt_fit import EXACT_CLASSES, KltFitter, find_spectrum
from lpld_labels.codecs.packing import pack_bands
from lpld_labels.errors import InvalidArgumentError, InvalidBatchError, PoolCorruptError
from lpld_labels.format.manifest import CodecEntry
from tests.label_factory import make_logits, make_probabilities

Labels = npt.NDArray[Any]


def new_fitter(rows: int = 100_000) -> KltFitter:
    made = [make_logits(64, 60, seed=seed) for seed in range(6)]
    return KltFitter(fit=made[:-2], tune=made[-2:], rows=rows, batch_size=64)


fitter = functools.cache(new_fitter)


def halves(blocks: list[Labels], **options: Any) -> KltFitter:
    middle = len(blocks) // 2
    rows, batch_size = sum(map(len, blocks)), len(blocks[0])
    return KltFitter(fit=blocks[:middle], tune=blocks[middle:], rows=rows, batch_size=batch_size, **options)


def restored(codec: KltCodec) -> KltCodec:
    entry = CodecEntry(name="klt", parameters=codec.parameters())
    tables, classes = codec.tables(), codec.basis.shape[1]
    again = restore_codec(entry, tables, classes=classes, label_kind=codec.label_kind, where="pool.json")
    assert isinstance(again, KltCodec)
    return again


def decoded(codec: KltCodec, labels: Labels) -> Labels:
    return codec.decode(codec.encode(labels).payload, rows=len(labels), classes=labels.shape[1])


def test_many_classes_are_fitted_by_their_range() -> None:
    classes = EXACT_CLASSES + 152
    blocks = [make_logits(128, classes, rank=20, seed=s, noise=0) for s in range(4)]
    spectrum = find_spectrum(blocks)
    np.testing.assert_array_equal(spectrum.directions, find_spectrum(blocks).directions)
    held = make_logits(64, classes, rank=20, seed=9, noise=0).astype(np.float32) - spectrum.mean
    held -= held.mean(axis=1, keepdims=True)
    left = held - held @ spectrum.directions.T @ spectrum.directions
    assert (left**2).sum() < 1e-5 * (held**2).sum()


@pytest.mark.parametrize(("step", "peaks"), [(0.3, 4), (2.0, 1), (2.0, 16), (9.0, 4)])
def test_peaks_come_back_and_the_largest_stays_the_largest(step: float, peaks: int) -> None:
    codec = fitter().codec(step, peaks=peaks)
    labels = np.concatenate([make_logits(64, 60, seed=seed) for seed in range(20, 26)])
    found = decoded(codec, labels)
    chosen = np.take_along_axis(labels, found.argmax(axis=1)[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(chosen, labels.max(axis=1))
    order = np.argsort(-labels.astype(np.float32), axis=1, kind="stable")[:, 1:peaks]
    true = np.take_along_axis(labels, order, axis=1).astype(np.float32)
    # All but the largest, which may have been lifted over a rival, are within half a grid of the truth, up to
    # the rounding of the row's mean, which shifts all classes alike.
    coded = codec.step * codec.numbers(labels).integers[:, 0] / math.sqrt(60)
    shift = (labels.astype(np.float32) - codec.mean).mean(axis=1) - coded
    kept = np.take_along_axis(found, order, axis=1) + shift[:, None]
    np.testing.assert_allclose(kept, true, atol=step / 16 + 1e-4)


def test_more_peaks_keep_more_at_low_temperature() -> None:
    codecs = [fitter().codec(12.0, peaks=peaks) for peaks in (0, 1, 4, 15)]
    kept = [fitter().measure(codec).kept[1] for codec in codecs]
    assert kept == sorted(kept)
    assert kept[2] > kept[0] + 0.05
    assert not any(column.name.startswith("peak") for column in codecs[0].payload_columns(60))
    assert len({codec.identity() for codec in codecs}) == len(codecs)


@pytest.mark.parametrize("step", [0.001, 0.1, 3.0])
def test_integers_are_exact_whatever_multiplies(step: float) -> None:
    codec = fitter().codec(step)
    labels = np.concatenate([make_logits(64, 60, seed=seed) for seed in range(20)])
    basis = codec.basis.astype(np.float64)
    projection = np.linalg.solve(basis @ basis.T, basis).T
    exact = (labels.astype(np.float32) - codec.mean).astype(np.float64) @ projection
    expected = np.sign(exact) * np.floor(np.abs(exact) / codec.step + ROUNDING)
    np.testing.assert_array_equal(codec.numbers(labels).integers, expected)


def test_a_restored_codec_is_the_same() -> None:
    codec = fitter().for_fidelity(0.97, temperature=20)
    again = restored(codec)
    labels = make_logits(64, 60, seed=5)
    first, second = codec.encode(labels), again.encode(labels)
    assert first.payload == second.payload
    canonical = again.canonical(second.payload, rows=64, classes=60)
    assert [bytes(part) for part in first.canonical] == [bytes(part) for part in canonical]
    assert again.identity() == codec.identity()
    assert again.tables() == codec.tables()
    assert again.parameters() == codec.parameters()
    assert codec.identity() != fitter().for_fidelity(0.9, temperature=20).identity()
    other = new_fitter().for_fidelity(0.97, temperature=20)
    assert other.identity() == codec.identity(), "fitting is deterministic"
    assert other.tables() == codec.tables()


def test_batches_decode_alone_and_row_means_are_kept() -> None:
    codec = fitter().for_fidelity(0.97, temperature=20)
    labels = make_logits(64, 60, seed=5).astype(np.float32) + np.linspace(-4, 4, 64)[:, None]
    whole = decoded(codec, labels)
    assert np.abs((whole - labels).mean(axis=1)).max() <= codec.step / math.sqrt(60)
    for rows in (slice(0, 1), slice(3, 40)):
        np.testing.assert_allclose(decoded(codec, labels[rows]), whole[rows], rtol=1e-4, atol=1e-4)


def test_probabilities_decode_to_probabilities() -> None:
    blocks = [make_probabilities(64, 30, seed=seed) for seed in range(6)]
    codec = halves(blocks, label_kind="probabilities").for_fidelity(0.98, temperature=1)
    found = decoded(codec, blocks[5])
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    assert (found >= 0).all()
    assert np.abs(found - blocks[5].astype(np.float32)).mean() < 0.01


@pytest.mark.parametrize(("fidelity", "temperature"), [(0.9, 20.0), (0.99, 1.0), (0.999, 4.0)])
def test_fidelity_is_met_and_not_exceeded_for_nothing(fidelity: float, temperature: float) -> None:
    codec = fitter().for_fidelity(fidelity, temperature=temperature)
    kept = fitter().measure(codec, temperatures=(temperature,)).kept[temperature]
    assert fidelity <= kept < fidelity + 0.05 * (1 - fidelity) + 1e-4


def test_small_pools_get_a_smaller_basis() -> None:
    codecs = [fitter(rows).for_fidelity(0.97, temperature=20) for rows in (500, 10_000, 10_000_000)]
    sizes = [len(codec.tables()["basis.pco"]) for codec in codecs]
    assert sizes[0] < sizes[1] < sizes[2]


@pytest.fixture(scope="module")
def real() -> tuple[KltFitter, list[Labels]]:
    logits = [batch.labels for batch in real_batches()]
    rest = logits[1::2]
    return KltFitter(fit=logits[::2], tune=rest[:6], rows=1_000_000, batch_size=128), rest[6:]


def judged(codec: Any, labels: list[Labels]) -> Trial:
    return try_codec(codec, labels, batch_size=128)


def test_real_logits_in_180_and_in_100_bytes(real: tuple[KltFitter, list[Labels]]) -> None:
    trial = judged(real[0].for_fidelity(0.965, temperature=20), real[1])
    assert trial.payload_per_row <= 180
    assert trial.fidelity.kept[20] >= 0.96
    assert trial.fidelity.kept[1] >= 0.99
    assert trial.fidelity.top1 == 1
    for simple in ("topk:50", "topk:80:8"):
        other = judged(codec_named(simple), real[1])
        assert all(other.fidelity.kept[t] < trial.fidelity.kept[t] for t in (1.0, 4.0, 20.0))
    smaller = judged(real[0].for_fidelity(0.905, temperature=20), real[1])
    assert smaller.payload_per_row <= 100
    assert smaller.fidelity.kept[20] >= 0.90


@pytest.mark.thorough
def test_real_logits_at_temperature_one(real: tuple[KltFitter, list[Labels]]) -> None:
    codec = real[0].for_fidelity(0.93, temperature=1)
    assert codec.peaks > 1, "at low temperatures it pays to correct more of the largest labels"
    trial, rival = judged(codec, real[1]), judged(codec_named("topk:20:8"), real[1])
    assert trial.payload_per_row < rival.payload_per_row
    assert trial.fidelity.kept[1] > rival.fidelity.kept[1]


def test_entropy_coding_is_within_a_tenth_of_the_entropy(real: tuple[KltFitter, list[Labels]]) -> None:
    codec = real[0].codec(1.0)
    blocks = [codec.numbers(block).integers for block in real[1]]
    integers = np.concatenate(blocks)
    shares = [np.unique(column, return_counts=True)[1] / len(column) for column in integers.T]
    entropy = -sum(float((share * np.log2(share)).sum()) for share in shares)
    packed = sum(len(blob) for block in blocks for blob in pack_bands(block, codec.edges))
    assert packed / len(integers) <= 1.1 * entropy / 8


@pytest.mark.parametrize(
    ("fidelity", "temperature", "words"),
    [
        *((fidelity, 20.0, "between 0 and 1") for fidelity in (0.0, 1.0, 1.5, math.nan)),
        *((0.9, temperature, "temperature") for temperature in (0.0, -1.0, math.inf, math.nan)),
    ],
)
def test_bad_targets_and_steps(fidelity: float, temperature: float, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        fitter().for_fidelity(fidelity, temperature=temperature)
    for step in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidArgumentError, match="step"):
            fitter().codec(step)


ALIKE = np.tile(np.arange(10, dtype=np.float16), (32, 1))


@pytest.mark.parametrize(
    "values", [[0.0] * 4, [3.5, -2.0, 1.0, 0.25], None], ids=["zero", "constant", "alike"]
)
def test_labels_without_variety(values: list[float] | None) -> None:
    blocks = [np.full((32, 10), value, np.float16) for value in values] if values else [ALIKE] * 4
    codec = restored(halves(blocks).for_fidelity(0.97, temperature=20))
    for block in blocks:
        # Softmax sees no shift of a whole row; what it sees must be right.
        found, expected = decoded(codec, block), block.astype(np.float32)
        shift = (found - expected).mean(axis=1, keepdims=True)
        np.testing.assert_allclose(found - shift, expected, atol=0.01)


def test_more_classes_than_rows() -> None:
    blocks = [make_logits(20, 300, rank=5, noise=0, seed=s) for s in range(2)]
    assert len(halves(blocks).for_fidelity(0.9, temperature=20).basis) <= 20
    # Noise in 300 directions cannot be learnt from 20 rows.
    noisy = [np.random.default_rng(s).normal(0, 2, (20, 300)).astype(np.float16) for s in range(2)]
    with pytest.raises(InvalidArgumentError, match=r"cannot reach this fidelity.*at most"):
        halves(noisy).for_fidelity(0.9, temperature=20)
    with pytest.raises(InvalidArgumentError, match="too few"):
        KltFitter(fit=[make_logits(1, 10)], tune=[make_logits(1, 10)[:0]], rows=1, batch_size=1)


def test_labels_far_outside_the_sample_and_damaged_payloads_are_refused() -> None:
    codec = fitter().codec(0.5)
    with pytest.raises(InvalidBatchError, match="far outside"):
        codec.encode(make_logits(4, 60, dtype=np.float32) * 1e6)
    payload = dict(codec.encode(make_logits(4, 60)).payload)
    with pytest.raises(PoolCorruptError, match="a different number of classes"):
        codec.decode(payload, rows=4, classes=61)
    for name in ("band_0", "peak_gaps", "peak_values"):
        with pytest.raises(PoolCorruptError, match=name):
            codec.decode({**payload, name: pa.array([b"nonsense"], pa.binary())}, rows=4, classes=60)
    codec.basis = np.full_like(codec.basis, 3e38)
    with pytest.raises(PoolCorruptError, match="not finite"):
        codec.decode(payload, rows=4, classes=60)


@pytest.mark.parametrize("largest", [65_505, 1e20, 3e38])
def test_labels_beyond_half_precision_are_refused(largest: float) -> None:
    labels = make_logits(64, 20, dtype=np.float32)
    labels[5, 3] = largest
    with pytest.raises(InvalidArgumentError, match="labels are too large for codec 'klt'"):
        KltFitter(fit=[labels], tune=[labels], rows=64, batch_size=64)
    assert KltFitter(fit=[labels.clip(max=65_504)], tune=[labels[:3]], rows=64, batch_size=64)
