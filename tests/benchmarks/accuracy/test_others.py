import numpy as np
import torch

from benchmarks.accuracy.others import Quantised, Sampled
from benchmarks.accuracy.shipped import shipped
from lpld_core.teachers.teacher import load_teacher

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(2000, 10)).astype(np.float32) * 5


def softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    raised = np.exp(logits.astype(np.float64) / temperature)
    return np.asarray(raised / raised.sum(1, keepdims=True))


def test_sampled_labels_are_unbiased_at_the_training_temperature() -> None:
    logits = np.repeat(LOGITS[:1], 20_000, axis=0)
    sampled = Sampled(draws=5, classes=10, temperature=20.0, random=RANDOM)
    shares = softmax(sampled.decoded(logits), 20.0)
    assert np.abs(shares * 5 - np.round(shares * 5)).max() < 1e-6
    assert np.abs(shares.mean(0) - softmax(logits[:1], 20.0)[0]).max() < 0.005
    # 2002 multisets of 5 of 10 classes.
    assert sampled.row_bytes == 11 / 8


def test_more_parts_quantise_better_and_a_constant_changes_nothing() -> None:
    errors = []
    for parts in (1, 2, 5):
        quantised = Quantised(LOGITS, parts, seed=0)
        found = quantised.decoded(LOGITS)
        assert np.allclose(found, quantised.decoded(LOGITS + 3), atol=1e-4)
        errors.append(float(np.mean((found - LOGITS + LOGITS.mean(1, keepdims=True)) ** 2)))
        assert quantised.row_bytes == parts
        assert quantised.table_bytes == 2 * (10 + 256 * 10)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05 * LOGITS.var()


def test_a_shipped_teacher_labels_nearly_as_before_in_fewer_bytes() -> None:
    teacher = load_teacher(
        "small-resnet10:width=8",
        weights="random",
        classes=10,
        input_size=(32, 32),
        mean=[0.5] * 3,
        std=[0.2] * 3,
    )
    pixels = torch.from_numpy(RANDOM.normal(size=(16, 3, 32, 32)).astype(np.float32))
    expected = teacher.model(pixels)
    sizes = {}
    for form, error in (("teacher-f16", 0.002), ("teacher-int8", 0.05)):
        restored, sizes[form] = shipped(teacher, form)
        off = (restored.model(pixels) - expected).abs().max() / expected.abs().max()
        assert 0 < off < error
        assert restored.description.weights_digest != teacher.description.weights_digest
    weights = sum(value.numel() for value in teacher.model.parameters())
    assert weights < sizes["teacher-int8"] < 2 * weights < sizes["teacher-f16"] < 3 * weights
