"""The student's loss: the teacher's label, and optionally the true class."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # its usual name

from lpld_core.networks.weights import Tensors
from lpld_core.train.ranks import ALONE, Ranks
from lpld_core.train.settings import TrainSettings, temperature_in
from lpld_labels.codecs.label_semantics import as_logits, softened
from lpld_labels.errors import InvalidArgumentError

LossOf = Callable[[torch.Tensor, slice], torch.Tensor]
"""(logits [n, C] of n rows of a batch, which rows) -> their mean loss, a scalar on the training device."""

CALIBRATION_GRID = np.linspace(0.01, 1, 100)
"""Candidates for a calibrated student temperature."""
_STUDENT_TEMPERATURE = "student_temperature"


class StudentLoss:
    """The loss of a run, with the temperatures of the current epoch for labels and output.

    label_kind: of the pool's labels. kept: classes of a row that top-k labels store, or None for all.
    """

    def __init__(self, settings: TrainSettings, *, label_kind: str, kept: int | None = None) -> None:
        if settings.loss != "kl" and label_kind != "logits":
            raise InvalidArgumentError("this loss needs logits", where=settings.loss, got=label_kind)
        self._settings, self._label_kind = settings, label_kind
        self._kept = kept if settings.tail == "none" else None
        self._calibrated = 1.0
        self._last: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.temperature = temperature_in(settings, 0)

    @property
    def student_temperature(self) -> float:
        wanted = self._settings.student_temperature
        if isinstance(wanted, str):
            return self.temperature if wanted == "teacher" else self._calibrated
        return wanted

    def start_epoch(self, epoch: int) -> None:
        self.temperature = temperature_in(self._settings, epoch)

    def of(self, labels: torch.Tensor, classes: torch.Tensor) -> LossOf:
        """Return the loss of a batch as a function of the student's logits; keep the batch for `end_epoch`.

        labels: float32 [B, C]. classes: int64 [B], the true class of each view's own image.
        """
        if self._settings.loss != "kl":
            return lambda output, rows: mse_and_truth(self._settings, output, labels[rows], classes[rows])
        target = self.target(labels)
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        if len(labels) > 1:  # single rows are not trained on
            self._last = seen

        def kl_of(output: torch.Tensor, rows: slice) -> torch.Tensor:
            seen.append((output.detach(), target[rows]))
            loss = kl(output, target[rows], self.student_temperature)
            return loss * self.temperature**2 if self._settings.scale_by_t2 else loss

        return kl_of

    def target(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the target probabilities [B, C]."""
        kind, share = self._label_kind, self._settings.label_smoothing
        if self._kept is not None and self._kept < labels.shape[1]:
            labels, kind = largest_only(as_logits(labels, kind), self._kept), "logits"
        # Smoothed logits (1 - s) z + s / C: softmax does not see the constant.
        return softened(labels, kind, self.temperature / (1 - share))

    def end_epoch(self, ranks: Ranks = ALONE) -> None:
        """Calibrate the student's temperature on the labels of the last batch, if the settings say so."""
        if self._settings.student_temperature == "calibrated":
            losses = torch.zeros(len(CALIBRATION_GRID), dtype=torch.float64)
            for output, target in self._last:
                for place, temperature in enumerate(CALIBRATION_GRID.tolist()):
                    losses[place] += float(kl(output, target, temperature)) * len(output)
            losses = ranks.sum(losses)
            if bool(losses.any()):
                self._calibrated = float(CALIBRATION_GRID[int(losses.argmin())])
        self._last = []

    def state(self) -> Tensors:
        """Return what the next epoch depends on."""
        return {_STUDENT_TEMPERATURE: torch.tensor(self._calibrated, dtype=torch.float64)}

    def load_state(self, tensors: Tensors) -> None:
        """Resume from what `state` returned; other tensors are ignored."""
        self._calibrated = float(tensors[_STUDENT_TEMPERATURE])


def kl(output: torch.Tensor, target: torch.Tensor, temperature: float) -> torch.Tensor:
    """KL(target || softmax(output / temperature)), summed over classes, mean over rows; 0 log 0 is 0."""
    logs = F.log_softmax(output / temperature, dim=1)
    return F.kl_div(logs, target.to(output.dtype), reduction="batchmean")  # older torch does not promote


def mse_and_truth(
    settings: TrainSettings, output: torch.Tensor, labels: torch.Tensor, classes: torch.Tensor
) -> torch.Tensor:
    """Squared error to the logits, mean over classes and rows, plus the true class (G-VBSM)."""
    hard = F.cross_entropy(output, classes, label_smoothing=settings.label_smoothing)
    return F.mse_loss(output, labels.to(output.dtype)) + settings.gamma * hard


def largest_only(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Return logits [B, C] with all but the largest `count` of a row at minus infinity."""
    values, classes = logits.topk(count, dim=1)
    return torch.full_like(logits, -torch.inf).scatter_(1, classes, values)
