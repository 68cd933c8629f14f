"""Mean and variance of every class at once, over the channels of all BatchNorm layers.

A batch is one row per image: mean and mean square of each channel over the image's pixels. One segment sum
over the labels serves all classes and layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from lpld_core.networks.batchnorm import BatchNormLayer, image_sums, watched_inputs
from lpld_core.networks.weights import Tensors
from lpld_core.teachers.teacher import LoadedTeacher


class BatchRows:
    """Collects a batch's rows while the network runs; `take` returns them.

    Values are relative to the layers' running means (`shift`), which keeps variances exact where means are
    large. A layer that runs twice counts both times; one that does not run gives zeros.
    reached: bool [layers], those that have run.
    """

    def __init__(self, layers: Sequence[BatchNormLayer]) -> None:
        self.layers = layers
        self.reached = torch.zeros(len(layers), dtype=torch.bool)
        self.shift = torch.cat([layer.running_mean for layer in layers]).double()
        self._parts: list[tuple[Tensor, Tensor, int] | None] = [None] * len(layers)

    def watch(self, number: int, values: Tensor) -> None:
        """Add the input float [B, channels, H, W] of a layer."""
        first, second = image_sums(values, self.layers[number].running_mean)
        pixels = values.shape[2] * values.shape[3]
        before = self._parts[number]
        if before is not None:
            first, second, pixels = first + before[0], second + before[1], pixels + before[2]
        self._parts[number] = (first, second, pixels)
        self.reached[number] = True

    def take(self, images: int) -> tuple[Tensor, Tensor]:
        """Return mean and mean square per image, float64 [images, channels of all layers], and reset."""
        means, squares = [], []
        for part, layer in zip(self._parts, self.layers, strict=True):
            zeros = self.shift.new_zeros(images, layer.channels)
            first, second, pixels = part if part is not None else (zeros, zeros, 1)
            means.append(first / pixels)
            squares.append(second / pixels)
        self._parts = [None] * len(self.layers)
        return torch.cat(means, dim=1).double(), torch.cat(squares, dim=1).double()


class ClassMoments:
    """Accumulates rows; `result` gives mean and biased variance per class.

    shift: float64 [channels], what the rows' values are relative to. momentum: None for the exact moments of
    all images; a number for the paper's moving average, whose classes move by this share with each batch.
    """

    def __init__(self, classes: int, shift: Tensor, momentum: float | None = None) -> None:
        self.shift, self.momentum = shift, momentum
        self.counts = torch.zeros(classes, dtype=torch.int64, device=shift.device)
        # Sums of means and mean squares; or averages of means and variances, which start at 0 and 1.
        self._first = shift.new_zeros(classes, len(shift))
        self._second = torch.zeros_like(self._first) if momentum is None else torch.ones_like(self._first)

    def add(self, labels: Tensor, means: Tensor, squares: Tensor) -> None:
        """Add a batch: labels int64 [B], mean and mean square float64 [B, channels] of each image."""
        self.counts += torch.bincount(labels, minlength=len(self.counts))
        if self.momentum is None:
            self._first.index_add_(0, labels, means)
            self._second.index_add_(0, labels, squares)
            return
        present, row, images = torch.unique(labels, return_inverse=True, return_counts=True)
        zeros = means.new_zeros(len(present), means.shape[1])
        mean = zeros.index_add(0, row, means) / images.view(-1, 1)
        variance = zeros.index_add(0, row, squares) / images.view(-1, 1) - mean.square()
        self._first[present] += self.momentum * (mean + self.shift - self._first[present])
        self._second[present] += self.momentum * (variance - self._second[present])

    def result(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance, float64 [classes, channels] each; exact ones are NaN without images."""
        if self.momentum is not None:
            return self._first, self._second
        images = self.counts.view(-1, 1)
        mean = self._first / images
        return mean + self.shift, (self._second / images - mean.square()).clamp_(min=0)

    def state(self) -> Tensors:
        """Return the accumulators themselves."""
        return {"counts": self.counts, "first": self._first, "second": self._second}

    def load_state(self, tensors: Tensors) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(tensors[name])


def gather(
    teacher: LoadedTeacher, batches: Iterable[tuple[Tensor, Tensor]], rows: BatchRows, moments: ClassMoments
) -> Iterator[int]:
    """Run the teacher over batches and add them to the moments; yield the size of each."""
    device = rows.shift.device
    with watched_inputs(rows.layers, rows.watch):
        for images, labels in batches:
            with torch.inference_mode():
                teacher.model(images.to(device))
                moments.add(labels.to(device), *rows.take(len(labels)))
            yield len(labels)
