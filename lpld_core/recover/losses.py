"""The recovery loss: cross-entropy through the frozen teacher, and the distance to BatchNorm statistics.

A *unit* is a set of images whose batch statistics are compared together: the images of one class
(lpld) or one image of each of many classes (sre2l). Units in one forward pass do not touch each
other: the teacher normalises with its global statistics, and moments are taken unit by unit. So the
sum of their losses has, for each image, the gradient of its own unit's loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from lpld_core.networks.batchnorm import BatchNormLayer, image_sums, watched_inputs


class _UnitMoments(torch.autograd.Function):
    """Mean and biased variance per unit; the gradient is one multiply-add over the values.

    Autograd's own path would write several temporaries as large as the activations.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, values: Tensor, unit_of_image: Tensor, sizes: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        first, second = image_sums(values, shift)
        count = (sizes * (values.shape[2] * values.shape[3])).view(-1, 1).to(values.dtype)
        zeros = first.new_zeros(len(sizes), first.shape[1])
        mean = zeros.index_add(0, unit_of_image, first) / count
        variance = zeros.index_add(0, unit_of_image, second) / count - mean.square()
        mean = mean + shift
        ctx.save_for_backward(values, unit_of_image, count, mean)
        return mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_grad: Tensor, variance_grad: Tensor) -> tuple[Tensor | None, ...]:
        values, unit_of_image, count, mean = ctx.saved_tensors
        slope = 2 * variance_grad / count
        offset = mean_grad / count - slope * mean
        per_image = [part[unit_of_image][:, :, None, None] for part in (offset, slope)]
        return torch.addcmul(per_image[0], per_image[1], values), None, None, None


def unit_moments(
    values: Tensor, unit_of_image: Tensor, sizes: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance over the images and pixels of each unit: float [units, channels].

    values: float [B, channels, H, W]. unit_of_image: int64 [B]. sizes: int64 [units], images per unit.
    shift: float [channels], a guess of the mean (see batchnorm.image_sums); it changes no result.
    """
    moments: tuple[Tensor, Tensor] = _UnitMoments.apply(values, unit_of_image, sizes, shift)
    return moments


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerTarget:
    """What a layer's unit statistics should be: mean and variance, float [units or 1, channels]."""

    layer: BatchNormLayer
    mean: Tensor
    variance: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitLosses:
    """Losses per unit, float [units]: mean cross-entropy, and the weighted BatchNorm distance."""

    cross_entropy: Tensor
    batchnorm: Tensor

    def total(self, alpha: float) -> Tensor:
        """Return cross-entropy + alpha * BatchNorm distance: float [units]."""
        return self.cross_entropy + alpha * self.batchnorm


def unit_losses(
    model: nn.Module,
    images: Tensor,
    classes: Tensor,
    unit_of_image: Tensor,
    targets: Sequence[LayerTarget],
    *,
    first_layer_weight: float = 10.0,
) -> UnitLosses:
    """Run the images through the model (eval mode) once and return both losses of every unit.

    images: float [B, 3, H, W], normalised. classes: int64 [B]. unit_of_image: int64 [B], 0 to units - 1.
    BatchNorm distance of a unit: sum over layers of w * (|mean - target|_2 + |variance - target|_2),
    w = first_layer_weight at the first target and 1 at the others.
    """
    sizes = torch.bincount(unit_of_image)
    distances = []

    def watch(number: int, values: Tensor) -> None:
        target = targets[number]
        mean, variance = unit_moments(values, unit_of_image, sizes, target.layer.running_mean)
        distance = torch.linalg.vector_norm(mean - target.mean, dim=1)
        distance = distance + torch.linalg.vector_norm(variance - target.variance, dim=1)
        distances.append(distance * (first_layer_weight if number == 0 else 1.0))

    with watched_inputs([target.layer for target in targets], watch):
        logits = model(images)
    per_image = nn.functional.cross_entropy(logits, classes, reduction="none")
    cross_entropy = per_image.new_zeros(len(sizes)).index_add(0, unit_of_image, per_image) / sizes
    return UnitLosses(cross_entropy=cross_entropy, batchnorm=torch.stack(distances).sum(dim=0))
