"""Mean and variance of every class at once, for one BatchNorm layer.

Each batch comes as per-image sums (see batchnorm.image_sums); a segment sum over the labels gives all
classes in one operation, however many there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class ClassMoments(ABC):
    """Gathers batches of one layer; `result` gives mean and biased variance per class.

    shift: float [channels], what was subtracted from the values before they were summed.
    """

    def __init__(self, classes: int, shift: Tensor) -> None:
        self.shift = shift.to(torch.float64)
        self._shape = (classes, len(shift))

    def _zeros(self) -> Tensor:
        return torch.zeros(self._shape, dtype=torch.float64, device=self.shift.device)

    @abstractmethod
    def add(self, labels: Tensor, first: Tensor, second: Tensor, pixels: int) -> None:
        """Add a batch.

        labels: int64 [B]. first, second: float [B, channels], sums over the `pixels` pixels of each image.
        """

    @abstractmethod
    def result(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance, float64 [classes, channels] each."""


class ExactMoments(ClassMoments):
    """The moments over all pixels of all images of a class, whatever the batches were."""

    def __init__(self, classes: int, shift: Tensor) -> None:
        super().__init__(classes, shift)
        self._first, self._second = self._zeros(), self._zeros()
        self._pixels = torch.zeros(classes, 1, dtype=torch.float64, device=shift.device)

    def add(self, labels: Tensor, first: Tensor, second: Tensor, pixels: int) -> None:
        """Add sums to sums; nothing is divided until the end."""
        self._first.index_add_(0, labels, first.to(torch.float64))
        self._second.index_add_(0, labels, second.to(torch.float64))
        self._pixels.index_add_(0, labels, torch.full_like(self._pixels[:1], pixels).expand(len(labels), 1))

    def result(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance; NaN for a class that was never seen."""
        mean = self._first / self._pixels
        variance = (self._second / self._pixels - mean.square()).clamp_(min=0)
        return mean + self.shift, variance


class RunningMoments(ClassMoments):
    """The paper's moving average: each batch moves the classes it holds a step of `momentum`."""

    def __init__(self, classes: int, shift: Tensor, momentum: float) -> None:
        super().__init__(classes, shift)
        self.momentum = momentum
        self._mean, self._variance = self._zeros(), self._zeros() + 1

    def add(self, labels: Tensor, first: Tensor, second: Tensor, pixels: int) -> None:
        """Move the classes in this batch towards its class moments; leave the others alone."""
        present, row = torch.unique(labels, return_inverse=True)
        shape = (len(present), first.shape[1])
        count = torch.bincount(row, minlength=len(present)).view(-1, 1) * pixels
        sums = [
            torch.zeros(shape, dtype=torch.float64, device=first.device).index_add_(0, row, part.double())
            for part in (first, second)
        ]
        mean = sums[0] / count
        variance = sums[1] / count - mean.square()
        self._mean[present] += self.momentum * (mean + self.shift - self._mean[present])
        self._variance[present] += self.momentum * (variance - self._variance[present])

    def result(self) -> tuple[Tensor, Tensor]:
        """Return where the averages are now; 0 and 1 for a class that was never seen."""
        return self._mean, self._variance
