"""Running a teacher over batches of images, and gathering moments at its BatchNorm layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from lpld_core.networks.batchnorm import BatchNormLayer, batchnorm_layers, watched_inputs
from lpld_core.squeeze.class_moments import BatchRows, ClassMoments
from lpld_core.teachers.teacher import LoadedTeacher


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
