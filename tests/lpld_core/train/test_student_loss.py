from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from lpld_core.train.settings import TrainSettings
from lpld_core.train.student import (
    CALIBRATION_GRID,
    StudentLoss,
    largest_only,
)
from lpld_core.train.train_teacher import true_class_loss
from lpld_labels.errors import InvalidArgumentError

OUTPUT = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 0.2]])
LABELS = torch.tensor([[2.0, -1.0, 0.0], [0.5, 2.0, -4.0]])
OWN, PARTNER, WEIGHT = torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([0.7, 0.7])

ALL = slice(None)


def loss_of(
    output: torch.Tensor = OUTPUT, labels: torch.Tensor = LABELS, kind: str = "logits", **settings: Any
) -> torch.Tensor:
    return StudentLoss(TrainSettings(**settings), label_kind=kind).of(labels, OWN)(output, ALL)


@pytest.mark.parametrize("temperature", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("squared", [False, True])
def test_kl_is_the_sum_over_classes_averaged_over_rows(temperature: float, squared: bool) -> None:
    p, q = (F.softmax(x / temperature, dim=1) for x in (LABELS, OUTPUT))
    expected = (p * (p / q).log()).sum() / 2 * (temperature**2 if squared else 1)
    torch.testing.assert_close(loss_of(temperature=temperature, scale_by_t2=squared), expected)


def test_kl_vanishes_where_the_student_agrees() -> None:
    shifted = LABELS + 5.0  # softmax does not see a shift
    assert float(loss_of(shifted)) == pytest.approx(0, abs=1e-6)


def test_probabilities_are_softened_like_the_logits_they_came_from() -> None:
    probabilities = F.softmax(LABELS, dim=1)
    torch.testing.assert_close(
        loss_of(labels=probabilities, kind="probabilities", temperature=4), loss_of(temperature=4)
    )


def test_a_probability_of_0_has_no_mass_and_costs_nothing() -> None:
    certain = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    output = OUTPUT.clone().requires_grad_()
    loss = loss_of(output, certain, "probabilities", temperature=4)
    torch.testing.assert_close(loss, F.cross_entropy(OUTPUT / 4, torch.tensor([0, 1])))
    loss.backward()  # type: ignore[no-untyped-call]
    assert output.grad is not None
    assert output.grad.isfinite().all()


def test_label_smoothing_shrinks_the_logits() -> None:
    # As the authors' programs write it.
    target = F.softmax((0.8 * LABELS + 0.2 * torch.full((2, 3), 1 / 3)) / 2, dim=1)
    expected = F.kl_div(F.log_softmax(OUTPUT / 2, dim=1), target, reduction="batchmean")
    torch.testing.assert_close(loss_of(temperature=2, label_smoothing=0.2), expected)


def test_mse_and_ground_truth() -> None:
    mixed = 0.7 * F.cross_entropy(OUTPUT, OWN) + 0.3 * F.cross_entropy(OUTPUT, PARTNER)
    torch.testing.assert_close(true_class_loss(OWN, PARTNER, WEIGHT)(OUTPUT, ALL), mixed)
    squares = ((OUTPUT - LABELS) ** 2).mean()
    own = F.cross_entropy(OUTPUT, OWN)
    torch.testing.assert_close(loss_of(loss="mse+gt", gamma=0.1), squares + 0.1 * own)
    with pytest.raises(InvalidArgumentError, match="needs logits"):
        loss_of(loss="mse+gt", kind="probabilities")


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_without_a_tail_the_kept_classes_share_the_mass(kind: str) -> None:
    labels = LABELS if kind == "logits" else F.softmax(LABELS, dim=1)
    loss = StudentLoss(TrainSettings(tail="none"), label_kind=kind, kept=2)
    expected = torch.zeros(2, 3)
    expected[:, :2] = F.softmax(LABELS[:, :2] / 20, dim=1)
    expected[0] = F.softmax(torch.tensor([2.0, -torch.inf, 0.0]) / 20, dim=0)
    torch.testing.assert_close(loss.target(labels), expected)
    assert torch.isneginf(largest_only(LABELS, 2)).sum() == 2
    whole = StudentLoss(TrainSettings(), label_kind=kind, kept=2).target(labels)
    torch.testing.assert_close(whole, F.softmax(LABELS / 20, dim=1))


def test_the_students_temperature_is_the_teachers_unless_given() -> None:
    p, q = F.softmax(LABELS / 20, dim=1), F.softmax(OUTPUT / 3, dim=1)
    torch.testing.assert_close(loss_of(student_temperature=3.0), (p * (p / q).log()).sum() / 2)


def test_calibrated_alignment_takes_the_best_temperature_of_the_last_batch() -> None:
    loss = StudentLoss(TrainSettings(temperature=4, student_temperature="calibrated"), label_kind="logits")
    assert loss.student_temperature == 1
    loss.of(LABELS, OWN)(OUTPUT, ALL)
    last = 0.1 * LABELS
    loss.of(LABELS, OWN)(last, ALL)
    loss.end_epoch()
    # softmax(0.1 z / t) is softmax(z / 4) at t = 0.4.
    assert loss.student_temperature == pytest.approx(0.4)
    assert loss.student_temperature in CALIBRATION_GRID.tolist()
    again = StudentLoss(TrainSettings(student_temperature="calibrated"), label_kind="logits")
    again.load_state(loss.state())
    assert again.student_temperature == loss.student_temperature
    np.testing.assert_allclose(CALIBRATION_GRID, np.arange(1, 101) / 100)


def test_a_falling_temperature_reaches_the_loss() -> None:
    settings = TrainSettings(temperature_schedule="step", scale_by_t2=True)
    loss = StudentLoss(settings, label_kind="logits")
    loss.start_epoch(89)
    assert loss.temperature == pytest.approx(20 * 0.7**3)
    torch.testing.assert_close(
        loss.of(LABELS, OWN)(OUTPUT, ALL), loss_of(temperature=20 * 0.7**3, scale_by_t2=True)
    )
