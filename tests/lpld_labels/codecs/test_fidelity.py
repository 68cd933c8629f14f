"""The measure of what a codec keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels.codecs.fidelity import TEMPERATURES, FidelityMeter
from lpld_labels.codecs.label_semantics import as_finite_logits, softmax
from tests.label_factory import make_logits, make_probabilities


def kept_by_hand(true: npt.NDArray[Any], decoded: npt.NDArray[Any], temperature: float) -> float:
    """The definition, in float64, row by row."""
    lost = known = 0.0
    for z, y in zip(true.astype(np.float64), decoded.astype(np.float64), strict=True):
        p, q = (np.exp(v / temperature) / np.exp(v / temperature).sum() for v in (z, y))
        lost += float((p * np.log(p / q)).sum())
        known += float((p * np.log(p * len(p))).sum())
    return 1 - lost / known


@pytest.mark.parametrize("temperature", TEMPERATURES)
@given(rows=st.integers(1, 300), classes=st.integers(2, 40), seed=st.integers(0, 9))
@settings(max_examples=15, deadline=None)
def test_it_is_the_definition(temperature: float, rows: int, classes: int, seed: int) -> None:
    true = make_logits(rows, classes, seed=seed)
    decoded = true + np.random.default_rng(seed).normal(0, 0.5, true.shape).astype(np.float32)
    meter = FidelityMeter(temperatures=(temperature,))
    # Batch by batch or at once is the same.
    meter.add(true[: rows // 2], decoded[: rows // 2])
    meter.add(true[rows // 2 :], decoded[rows // 2 :])
    found = meter.result().kept[temperature]
    assert found == pytest.approx(kept_by_hand(true, decoded, temperature), abs=1e-6)


def test_shifting_rows_loses_nothing_and_uniform_labels_everything() -> None:
    true = make_logits(50, 20, dtype=np.float32)
    meter = FidelityMeter()
    meter.add(true, true + np.linspace(-3, 3, 50, dtype=np.float32)[:, None])
    shifted = meter.result()
    assert all(kept == pytest.approx(1, abs=1e-6) for kept in shifted.kept.values())
    assert shifted.top1 == 1
    meter = FidelityMeter()
    meter.add(true, np.zeros_like(true))
    assert all(kept == pytest.approx(0, abs=1e-9) for kept in meter.result().kept.values())


def test_misleading_labels_fall_below_nothing() -> None:
    true = make_logits(50, 20)
    meter = FidelityMeter()
    meter.add(true, -true)
    assert all(kept < 0 for kept in meter.result().kept.values())


def test_labels_that_say_nothing_lose_nothing() -> None:
    meter = FidelityMeter()
    meter.add(np.zeros((4, 5), np.float16), np.zeros((4, 5), np.float16))
    assert set(meter.result().kept.values()) == {1.0}
    assert FidelityMeter().result().rows == 0


def test_ties_count_as_agreement() -> None:
    meter = FidelityMeter()
    meter.add(np.array([[2, 2, 0], [1, 0, 0]], np.float16), np.array([[1, 2, 0], [0, 1, 0]], np.float32))
    assert meter.result().top1 == 0.5


def test_probabilities_are_measured_as_such() -> None:
    true = make_probabilities(40, 10, dtype=np.float32)
    meter = FidelityMeter(label_kind="probabilities")
    meter.add(true, true)
    assert set(meter.result().kept.values()) == {1.0}


def test_probabilities_of_nothing_are_measured_as_nothing() -> None:
    true = np.array([[0.9, 0.1, 0, 0], [0, 0, 1, 0]], np.float32)
    decoded = np.array([[0.8, 0.2, 0, 0], [0, 0, 1, 0]], np.float32)
    meter = FidelityMeter(label_kind="probabilities", temperatures=(1, 20))
    meter.add(true, decoded)
    for temperature, kept in meter.result().kept.items():
        p, q = (x[0, :2].astype(np.float64) ** (1 / temperature) for x in (true, decoded))
        p, q = p / p.sum(), q / q.sum()
        known = (p * np.log(p)).sum() + 2 * np.log(4)
        assert kept == pytest.approx(1 - (p * np.log(p / q)).sum() / known, abs=1e-6)


def test_a_class_lost_to_rounding_costs_much_but_not_everything() -> None:
    true = np.array([[0.9, 0.1 - 1e-9, 1e-9]], np.float32)
    meter = FidelityMeter(label_kind="probabilities", temperatures=(1, 20))
    meter.add(true, true.astype(np.float16))
    kept = meter.result().kept
    assert kept[1] == pytest.approx(1, abs=1e-3)
    assert -10 < kept[20] < 0.99


def test_a_codec_without_zeros_is_told_so() -> None:
    true = np.zeros((8, 100), np.float32)
    true[np.arange(8), np.arange(8)] = 1
    decoded = softmax(as_finite_logits(true, "probabilities"))
    meter = FidelityMeter(label_kind="probabilities")
    meter.add(true, decoded)
    kept = meter.result().kept
    assert kept[1] > 0.999
    assert kept[20] < 0.3


def test_json_is_rounded() -> None:
    meter = FidelityMeter(temperatures=(1, 2.5))
    true = make_logits(10, 5)
    meter.add(true, true + np.float16(0.25) * (np.arange(5) % 2).astype(np.float16))
    document = meter.result().as_json()
    assert set(document["kept"]) == {"1", "2.5"}
    assert document["kept"]["1"] == round(document["kept"]["1"], 5)
    assert document["rows"] == 10
