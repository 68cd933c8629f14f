"""What a student is asked to match: the teacher's label, and where wanted the true class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # its usual name

from lpld_core.networks.weights import Tensors
from lpld_core.train.ranks import ALONE, Ranks
from lpld_core.train.settings import TrainSettings, temperature_in
from lpld_labels.codecs.label_semantics import as_logits, softened
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.records import ViewBatch
from lpld_labels.render import ImageStore

LossOf = Callable[[torch.Tensor, slice], torch.Tensor]
"""Logits [n, C] of n rows of a batch on the training device, and which rows -> their mean loss, a scalar."""

CALIBRATION_GRID = np.linspace(0.01, 1, 100)
"""Temperatures that calibrated alignment tries."""
_STUDENT_TEMPERATURE = "student_temperature"


@dataclass(frozen=True, kw_only=True)
class TrueClasses:
    """The images' own classes, for losses that use them.

    own, partner: int64 [B], class of each view's image and of the image mixed into it.
    weight: float32 [B], how much of the view is its own image (the recorded mixing strength).
    """

    own: torch.Tensor
    partner: torch.Tensor
    weight: torch.Tensor

    def __getitem__(self, rows: slice) -> TrueClasses:
        """Return those of some rows."""
        return TrueClasses(own=self.own[rows], partner=self.partner[rows], weight=self.weight[rows])

    def to(self, device: torch.device) -> TrueClasses:
        """Return the same on another device."""
        return TrueClasses(
            own=self.own.to(device), partner=self.partner.to(device), weight=self.weight.to(device)
        )


def true_classes(views: ViewBatch, store: ImageStore) -> TrueClasses:
    """Look up the classes of a batch's images and of those mixed into them."""
    own = store.table.classes[views.images].astype(np.int64)
    partner, weight = own, 1.0
    if views.mix is not None:
        partner, weight = own[views.mix.partner], views.mix.strength
    return TrueClasses(
        own=torch.from_numpy(own),
        partner=torch.from_numpy(partner),
        weight=torch.full((views.rows,), weight),
    )


class StudentLoss:
    """The loss of a run: what it depends on changes from epoch to epoch.

    label_kind: of the pool's labels. kept: classes of a row that top-k labels store, or None for all.
    temperature, student_temperature: of label and output in the current epoch.
    """

    def __init__(self, settings: TrainSettings, *, label_kind: str, kept: int | None = None) -> None:
        if settings.loss != "kl" and label_kind != "logits":
            raise InvalidArgumentError("this loss needs logits", where=settings.loss, got=label_kind)
        self._settings = settings
        self._label_kind = label_kind
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
        """Set the label's temperature."""
        self.temperature = temperature_in(self._settings, epoch)

    def of(self, labels: torch.Tensor, truth: TrueClasses) -> LossOf:
        """Return the loss of a batch as a function of the student's logits.

        labels: float32 [B, C].
        """
        if self._settings.loss != "kl":
            return lambda output, rows: mse_and_truth(self._settings, output, labels[rows], truth[rows])
        target = self.target(labels)
        seen = self._last = []

        def kl_of(output: torch.Tensor, rows: slice) -> torch.Tensor:
            seen.append((output.detach(), target[rows]))
            loss = kl(output, target[rows], self.student_temperature)
            return loss * self.temperature**2 if self._settings.scale_by_t2 else loss

        return kl_of

    def target(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the probabilities [B, C] that the student is to match."""
        kind, share = self._label_kind, self._settings.label_smoothing
        if self._kept is not None and self._kept < labels.shape[1]:
            labels, kind = largest_only(as_logits(labels, kind), self._kept), "logits"
        if self._settings.smoothing_on == "logits":
            # (1 - s) z + s / C shifts the row by a constant, which softmax does not see.
            return softened(labels, kind, self.temperature / (1 - share))
        target = softened(labels, kind, self.temperature)
        return target.lerp(torch.full_like(target, 1 / target.shape[1]), share) if share else target

    def end_epoch(self, ranks: Ranks = ALONE) -> None:
        """Align the student's temperature with the labels of the last batch, where that is asked for."""
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
        """Go on from what `state` returned, which may have been saved with other tensors."""
        self._calibrated = float(tensors[_STUDENT_TEMPERATURE])


def kl(output: torch.Tensor, target: torch.Tensor, temperature: float) -> torch.Tensor:
    """KL(target || softmax(output / temperature)), summed over classes, mean over rows; 0 log 0 is 0."""
    # Older releases of torch do not promote: a network of float64 wants labels of float64.
    return F.kl_div(
        F.log_softmax(output / temperature, dim=1), target.to(output.dtype), reduction="batchmean"
    )


def mse_and_truth(
    settings: TrainSettings, output: torch.Tensor, labels: torch.Tensor, truth: TrueClasses
) -> torch.Tensor:
    """Squared error to the logits, mean over classes and rows, plus the true class (G-VBSM)."""
    share = settings.label_smoothing
    squares = F.mse_loss(output, labels.to(output.dtype))
    if settings.ground_truth == "own":
        hard = F.cross_entropy(output, truth.own, label_smoothing=share)
    else:
        hard = mixed_cross_entropy(output, truth, label_smoothing=share)
    return squares + settings.gamma * hard


def mixed_cross_entropy(
    output: torch.Tensor, truth: TrueClasses, *, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Cross-entropy against the true classes of both images of a mixed view, by their weights."""
    own = F.cross_entropy(output, truth.own, reduction="none", label_smoothing=label_smoothing)
    partner = F.cross_entropy(output, truth.partner, reduction="none", label_smoothing=label_smoothing)
    return (truth.weight * own + (1 - truth.weight) * partner).mean()


def largest_only(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Return logits [B, C] with all but the largest `count` of a row at minus infinity."""
    values, classes = logits.topk(count, dim=1)
    return torch.full_like(logits, -torch.inf).scatter_(1, classes, values)
