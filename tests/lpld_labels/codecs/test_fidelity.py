from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels.codecs.fidelity import TEMPERATURES, Fidelity, FidelityMeter
from lpld_labels.codecs.label_semantics import as_finite_logits, softmax
from tests.label_factory import make_logits, make_probabilities


def measured(true: npt.NDArray[Any], decoded: npt.NDArray[Any], **options: Any) -> Fidelity:
    meter = FidelityMeter(**options)
    # In one call or in several is the same.
    meter.add(true[: len(true) // 2], decoded[: len(true) // 2])
    meter.add(true[len(true) // 2 :], decoded[len(true) // 2 :])
    return meter.result()


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
    found = measured(true, decoded, temperatures=(temperature,)).kept[temperature]
    assert found == pytest.approx(kept_by_hand(true, decoded, temperature), abs=1e-6)


def test_shifted_uniform_and_misleading_labels() -> None:
    true = make_logits(50, 20, dtype=np.float32)
    shifted = measured(true, true + np.linspace(-3, 3, 50, dtype=np.float32)[:, None])
    assert all(kept == pytest.approx(1, abs=1e-6) for kept in shifted.kept.values())
    assert shifted.top1 == 1
    uniform = measured(true, np.zeros_like(true))
    assert all(kept == pytest.approx(0, abs=1e-9) for kept in uniform.kept.values())
    assert all(kept < 0 for kept in measured(true, -true).kept.values())


def test_uniform_labels_and_ties_lose_nothing() -> None:
    blank = np.zeros((4, 5), np.float16)
    assert set(measured(blank, blank).kept.values()) == {1.0}
    assert FidelityMeter().result().rows == 0
    true, decoded = np.array([[2, 2, 0], [1, 0, 0]]), np.array([[1, 2, 0], [0, 1, 0]])
    assert measured(true.astype(np.float16), decoded.astype(np.float32)).top1 == 0.5


def test_zero_probabilities_count_as_nothing() -> None:
    same = make_probabilities(40, 10, dtype=np.float32)
    assert set(measured(same, same, label_kind="probabilities").kept.values()) == {1.0}
    true = np.array([[0.9, 0.1, 0, 0], [0, 0, 1, 0]], np.float32)
    decoded = np.array([[0.8, 0.2, 0, 0], [0, 0, 1, 0]], np.float32)
    found = measured(true, decoded, label_kind="probabilities", temperatures=(1, 20))
    for temperature, kept in found.kept.items():
        p, q = (x[0, :2].astype(np.float64) ** (1 / temperature) for x in (true, decoded))
        p, q = p / p.sum(), q / q.sum()
        known = (p * np.log(p)).sum() + 2 * np.log(4)
        assert kept == pytest.approx(1 - (p * np.log(p / q)).sum() / known, abs=1e-6)


def test_lost_zeros_and_classes_cost_much_at_high_temperatures() -> None:
    true = np.array([[0.9, 0.1 - 1e-9, 1e-9]], np.float32)
    kept = measured(true, true.astype(np.float16), label_kind="probabilities", temperatures=(1, 20)).kept
    assert kept[1] == pytest.approx(1, abs=1e-3)
    assert -10 < kept[20] < 0.99
    true = np.eye(8, 100, dtype=np.float32)
    decoded = softmax(as_finite_logits(true, "probabilities"))
    kept = measured(true, decoded, label_kind="probabilities").kept
    assert kept[1] > 0.999
    assert kept[20] < 0.3
