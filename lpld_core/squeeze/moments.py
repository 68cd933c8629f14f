"""Mean and variance of every class at once, over the channels of all BatchNorm layers.

A batch comes as one row per image: mean and mean square of each channel over the image's pixels. One
segment sum over the labels serves all classes and all layers, however many there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lpld_core.networks.batchnorm import BatchNormLayer, batchnorm_layers, image_sums, watched_inputs
from lpld_core.networks.weights import Tensors
from lpld_core.teachers.teacher import LoadedTeacher


class BatchRows:
    """Gathers a batch's rows while the network runs; `take` hands them over.

    Values are taken relative to the layers' running means, which keeps variances exact where means are
    large. A layer that runs twice in a forward pass counts both times; one that does not run gives zeros.
    """

    def __init__(self, layers: Sequence[BatchNormLayer]) -> None:
        self._layers = layers
        self._parts: list[tuple[Tensor, Tensor, int] | None] = [None] * len(layers)
        self.reached: set[int] = set()
        self.shift = torch.cat([layer.running_mean for layer in layers]).double()

    def watch(self, number: int, values: Tensor) -> None:
        """Note the input float [B, channels, H, W] of a layer."""
        first, second = image_sums(values, self._layers[number].running_mean)
        pixels = values.shape[2] * values.shape[3]
        before = self._parts[number]
        if before is not None:
            first, second, pixels = first + before[0], second + before[1], pixels + before[2]
        self._parts[number] = (first, second, pixels)
        self.reached.add(number)

    def take(self, images: int) -> tuple[Tensor, Tensor]:
        """Return mean and mean square per image, float64 [images, channels of all layers], and start anew."""
        empty = [self.shift.new_zeros(images, layer.channels) for layer in self._layers]
        means, squares = [], []
        for part, zeros in zip(self._parts, empty, strict=True):
            first, second, pixels = part if part is not None else (zeros, zeros, 1)
            means.append(first / pixels)
            squares.append(second / pixels)
        self._parts = [None] * len(self._layers)
        return torch.cat(means, dim=1).double(), torch.cat(squares, dim=1).double()


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupMoments:
    """Mean and variance float64 [classes, channels], views per class, and layers that ran."""

    mean: Tensor
    variance: Tensor
    counts: Tensor
    reached: frozenset[int]


class ClassMoments(ABC):
    """Gathers batches of rows; `result` gives mean and biased variance per class.

    shift: float64 [channels], what the rows' values are relative to.
    """

    def __init__(self, classes: int, shift: Tensor) -> None:
        self.shift = shift
        self.counts = torch.zeros(classes, dtype=torch.int64, device=shift.device)

    def _table(self, value: float) -> Tensor:
        """Return a float64 [classes, channels] of one value."""
        return self.shift.new_full((len(self.counts), len(self.shift)), value)

    def add(self, labels: Tensor, means: Tensor, squares: Tensor) -> None:
        """Add a batch: labels int64 [B], mean and mean square float64 [B, channels] of each image."""
        self.counts += torch.bincount(labels, minlength=len(self.counts))
        self._add(labels, means, squares)

    def state(self) -> Tensors:
        """Return what has been gathered."""
        return {"counts": self.counts, **self._tables()}

    def load_state(self, tensors: Tensors) -> None:
        """Go on from what `state` returned."""
        self.counts.copy_(tensors["counts"])
        for name, table in self._tables().items():
            table.copy_(tensors[name])

    @abstractmethod
    def _tables(self) -> Tensors:
        """Return the tables by name; they are the ones in use."""

    @abstractmethod
    def _add(self, labels: Tensor, means: Tensor, squares: Tensor) -> None: ...

    @abstractmethod
    def result(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance, float64 [classes, channels] each."""


class ExactMoments(ClassMoments):
    """The moments over all images of a class, whatever the batches were."""

    def __init__(self, classes: int, shift: Tensor) -> None:
        super().__init__(classes, shift)
        self._means, self._squares = self._table(0.0), self._table(0.0)

    def _tables(self) -> Tensors:
        return {"means": self._means, "squares": self._squares}

    def _add(self, labels: Tensor, means: Tensor, squares: Tensor) -> None:
        self._means.index_add_(0, labels, means)
        self._squares.index_add_(0, labels, squares)

    def result(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance; NaN for a class that was never seen."""
        images = self.counts.view(-1, 1)
        mean = self._means / images
        return mean + self.shift, (self._squares / images - mean.square()).clamp_(min=0)


class RunningMoments(ClassMoments):
    """The paper's moving average: each batch moves the classes it holds a step of `momentum`."""

    def __init__(self, classes: int, shift: Tensor, momentum: float) -> None:
        super().__init__(classes, shift)
        self.momentum = momentum
        self._mean, self._variance = self._table(0.0), self._table(1.0)

    def _tables(self) -> Tensors:
        return {"mean": self._mean, "variance": self._variance}

    def _add(self, labels: Tensor, means: Tensor, squares: Tensor) -> None:
        present, row, images = torch.unique(labels, return_inverse=True, return_counts=True)
        zeros = means.new_zeros(len(present), means.shape[1])
        mean = zeros.index_add(0, row, means) / images.view(-1, 1)
        variance = zeros.index_add(0, row, squares) / images.view(-1, 1) - mean.square()
        self._mean[present] += self.momentum * (mean + self.shift - self._mean[present])
        self._variance[present] += self.momentum * (variance - self._variance[present])

    def result(self) -> tuple[Tensor, Tensor]:
        """Return where the averages are now; 0 and 1 for a class that was never seen."""
        return self._mean, self._variance


class Gatherer:
    """Runs a teacher over batches and gathers moments at the inputs of its BatchNorm layers."""

    def __init__(self, teacher: LoadedTeacher) -> None:
        self._teacher = teacher
        self.layers: Sequence[BatchNormLayer] = batchnorm_layers(
            teacher.model, name=f"teacher {teacher.description.name}"
        )
        self.rows = BatchRows(self.layers)

    def gather(self, batches: Iterable[tuple[Tensor, Tensor]], moments: ClassMoments) -> Iterator[int]:
        """Add batches to the moments; yield the size of each."""
        device = self.rows.shift.device
        with watched_inputs(self.layers, self.rows.watch):
            for images, labels in batches:
                with torch.inference_mode():
                    self._teacher.model(images.to(device))
                    moments.add(labels.to(device), *self.rows.take(len(labels)))
                yield len(labels)
