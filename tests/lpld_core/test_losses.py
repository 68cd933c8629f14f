from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st

from lpld_core.training.losses import TrueClasses, kl_loss, mixed_cross_entropy, student_loss
from lpld_core.training.presets import PRESETS, SCHEDULES, TrainRecipe, preset_named
from lpld_core.training.schedules import rate_factor
from lpld_labels.errors import InvalidArgumentError

OUTPUT = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 0.2]])
LABELS = torch.tensor([[2.0, -1.0, 0.0], [0.5, 2.0, -4.0]])
TRUTH = TrueClasses(own=torch.tensor([0, 1]), partner=torch.tensor([1, 0]), weight=torch.tensor([0.7, 0.7]))


@pytest.mark.parametrize("temperature", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("squared", [False, True])
def test_kl_is_the_sum_over_classes_averaged_over_rows(temperature: float, squared: bool) -> None:
    recipe = TrainRecipe(temperature=temperature, scale_by_t2=squared)
    p, q = (F.softmax(x / temperature, dim=1) for x in (LABELS, OUTPUT))
    expected = (p * (p / q).log()).sum() / 2 * (temperature**2 if squared else 1)
    torch.testing.assert_close(kl_loss(recipe, OUTPUT, LABELS), expected)


def test_kl_vanishes_where_the_student_agrees() -> None:
    shifted = LABELS + 5.0  # softmax does not see a shift
    assert float(kl_loss(TrainRecipe(), shifted, LABELS)) == pytest.approx(0, abs=1e-6)


def test_probabilities_are_softened_like_the_logits_they_came_from() -> None:
    recipe = TrainRecipe(temperature=4)
    probabilities = F.softmax(LABELS, dim=1)
    torch.testing.assert_close(
        kl_loss(recipe, OUTPUT, probabilities, label_kind="probabilities"), kl_loss(recipe, OUTPUT, LABELS)
    )
    certain = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    loss = kl_loss(recipe, OUTPUT, certain, label_kind="probabilities")
    torch.testing.assert_close(loss, F.cross_entropy(OUTPUT / 4, torch.tensor([0, 1])))


def test_label_smoothing_spreads_a_share_evenly() -> None:
    recipe = TrainRecipe(temperature=2, label_smoothing=0.2)
    target = 0.8 * F.softmax(LABELS / 2, dim=1) + 0.2 / 3
    expected = F.kl_div(F.log_softmax(OUTPUT / 2, dim=1), target, reduction="batchmean")
    torch.testing.assert_close(kl_loss(recipe, OUTPUT, LABELS), expected)


def test_mse_and_ground_truth() -> None:
    recipe = TrainRecipe(loss="mse+gt", gamma=0.1)
    truth = 0.7 * F.cross_entropy(OUTPUT, TRUTH.own) + 0.3 * F.cross_entropy(OUTPUT, TRUTH.partner)
    torch.testing.assert_close(mixed_cross_entropy(OUTPUT, TRUTH), truth)
    loss = student_loss(recipe, OUTPUT, LABELS, TRUTH, label_kind="logits")
    torch.testing.assert_close(loss, ((OUTPUT - LABELS) ** 2).mean() + 0.1 * truth)
    with pytest.raises(InvalidArgumentError, match="needs logits"):
        student_loss(recipe, OUTPUT, LABELS, TRUTH, label_kind="probabilities")


def test_cosine_falls_from_one_to_nothing() -> None:
    recipe = TrainRecipe(epochs=10)
    assert rate_factor(recipe, 0) == 1
    assert rate_factor(recipe, 5) == pytest.approx(0.5)
    assert rate_factor(recipe, 10) == pytest.approx(0)


def test_smoothed_cosine_ends_half_way() -> None:
    recipe = TrainRecipe(epochs=10, schedule="smoothed-cosine")
    assert rate_factor(recipe, 5) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert rate_factor(recipe, 10) == pytest.approx(0.5)


def test_warm_up_is_linear() -> None:
    recipe = PRESETS["tiny"].train
    assert rate_factor(recipe, 0) == pytest.approx(0.01)
    assert rate_factor(recipe, 2.5) == pytest.approx((0.01 + 1) / 2)
    assert rate_factor(recipe, 5) == 1
    assert rate_factor(recipe, 100) == pytest.approx(0)


@given(st.sampled_from(SCHEDULES), st.floats(0, 5), st.floats(0, 20))
def test_rates_stay_in_bounds(schedule: str, warm_up: float, epoch: float) -> None:
    recipe = TrainRecipe(epochs=20, schedule=schedule, warm_up_epochs=warm_up)  # type: ignore[arg-type]
    assert 0 <= rate_factor(recipe, epoch) <= 1


def test_presets_are_the_published_settings() -> None:
    in1k, tiny, in21k, plus = (PRESETS[n] for n in ("imagenet1k", "tiny", "imagenet21k", "imagenet1k-plus"))
    for preset in PRESETS.values():
        assert preset.label.crop_scale == (0.08, 1.0)
        assert preset.train.temperature == 20
        assert preset.train.schedule == "cosine"
        assert preset.train.epochs == preset.label.epochs
    assert (in1k.label.epochs, in1k.label.batch_size) == (300, 128)
    assert (in1k.label.flip_probability, in1k.label.mix, in1k.label.cutout_fraction) == (0.5, "cutmix", None)
    assert (in1k.train.optimizer, in1k.train.learning_rate, in1k.train.weight_decay) == ("adamw", 0.001, 0.01)
    assert not in1k.train.scale_by_t2
    assert (tiny.label.epochs, tiny.label.batch_size) == (100, 64)
    assert (tiny.label.flip_probability, tiny.label.mix) == (0.5, "none")
    assert (tiny.train.optimizer, tiny.train.learning_rate, tiny.train.weight_decay) == ("sgd", 0.2, 1e-4)
    assert (tiny.train.momentum, tiny.train.warm_up_epochs, tiny.train.warm_up_from) == (0.9, 5, 0.01)
    assert tiny.train.scale_by_t2
    assert (in21k.label.epochs, in21k.label.batch_size) == (300, 32)
    assert (in21k.label.flip_probability, in21k.label.mix, in21k.label.cutout_fraction) == (None, "none", 0.5)
    assert (in21k.train.learning_rate, in21k.train.weight_decay) == (0.002, 0.01)
    assert in21k.train.label_smoothing == 0.2
    assert len(plus.label.teachers) == 4
    assert (plus.train.loss, plus.train.gamma) == ("mse+gt", 0.1)
    with pytest.raises(InvalidArgumentError, match="unknown preset"):
        preset_named("cifar")


def test_presets_become_augmentations() -> None:
    augmentation = PRESETS["imagenet1k"].label.augmentation((224, 224))
    assert (augmentation.mix, augmentation.mix_alpha, augmentation.output_height) == ("cutmix", 1.0, 224)
    assert PRESETS["tiny"].label.augmentation((64, 64)).mix_alpha is None
