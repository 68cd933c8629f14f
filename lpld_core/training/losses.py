"""What a student is asked to match: the teacher's label, and where wanted the true class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # its usual name

from lpld_core.training.presets import TrainRecipe
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.records import ViewBatch
from lpld_labels.replay import ImageStore


@dataclass(frozen=True, kw_only=True)
class TrueClasses:
    """The images' own classes, for losses that use them.

    own, partner: int64 [B], class of each view's image and of the image mixed into it.
    weight: float32 [B], how much of the view is its own image (the recorded mixing strength).
    """

    own: torch.Tensor
    partner: torch.Tensor
    weight: torch.Tensor

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


def student_loss(
    recipe: TrainRecipe, output: torch.Tensor, labels: torch.Tensor, truth: TrueClasses, *, label_kind: str
) -> torch.Tensor:
    """Return the mean loss of a batch: a scalar.

    output: the student's logits, float32 [B, C]. labels: float32 [B, C] of the pool's label_kind.
    """
    if recipe.loss == "kl":
        return kl_loss(recipe, output, labels, label_kind=label_kind)
    if label_kind != "logits":
        raise InvalidArgumentError("this loss needs logits", where=recipe.loss, got=label_kind)
    return F.mse_loss(output, labels) + recipe.gamma * mixed_cross_entropy(
        output, truth, label_smoothing=recipe.label_smoothing
    )


def kl_loss(
    recipe: TrainRecipe, output: torch.Tensor, labels: torch.Tensor, *, label_kind: str = "logits"
) -> torch.Tensor:
    """KL(teacher || student), both softened by the temperature, summed over classes, mean over rows."""
    temperature = recipe.temperature
    # softmax(log p / T) softens probabilities just as softmax(z / T) softens the logits they came from.
    logits = labels if label_kind == "logits" else labels.log()
    target = F.softmax(logits / temperature, dim=1)
    if recipe.label_smoothing:
        target = target.lerp(torch.full_like(target, 1 / target.shape[1]), recipe.label_smoothing)
    loss = F.kl_div(F.log_softmax(output / temperature, dim=1), target, reduction="batchmean")
    return loss * temperature**2 if recipe.scale_by_t2 else loss


def mixed_cross_entropy(
    output: torch.Tensor, truth: TrueClasses, *, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Cross-entropy against the true classes of both images of a mixed view, by their weights."""
    own = F.cross_entropy(output, truth.own, reduction="none", label_smoothing=label_smoothing)
    partner = F.cross_entropy(output, truth.partner, reduction="none", label_smoothing=label_smoothing)
    return (truth.weight * own + (1 - truth.weight) * partner).mean()
