"""The batches of one process by step, and the sampler that names the steps.

`StreamingLoader` plays them itself. Whoever puts a stock DataLoader around a loader's `dataset` and
`sampler`, as Accelerate and Hugging Face's Trainer do to skip batches, gets the same batches from any
step on: workers are behind the dataset, which goes where it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler

from lpld_labels.loader.cursor import Cursor, Schedule
from lpld_labels.loader.dataset import Prepared
from lpld_labels.loader.processes import Processes, current_processes
from lpld_labels.loader.settings import LabelSettings
from lpld_labels.loader.share import Position, Step
from lpld_labels.loader.streaming import LabelStream


class Cutter(Protocol):
    """Makes batches of a stream of label batches."""

    def __call__(self, prepared: Iterator[Prepared], device: torch.device | None) -> Callable[[Step], Any]:
        """Return the function that makes the batch of each step, one step after the other.

        device: where to make them unless the loader was told; None for the CPU.
        """


class TrainingSteps(Dataset[Any]):
    """The batches of this process by step, in any order; fast in the order of the steps."""

    def __init__(
        self, stream: LabelStream, schedule: Schedule, cutter: Cutter, settings: LabelSettings
    ) -> None:
        self.schedule = schedule
        self.cursor = Cursor()
        self.device: torch.device | None = None
        self._stream = stream
        self._cutter = cutter
        self._settings = settings
        self._make: Callable[[Step], Any] | None = None
        self._stands: tuple[Position, Processes, torch.device | None] | None = None

    def __len__(self) -> int:
        """Number of rows in the current epoch, of all processes together."""
        return self.schedule.rows_of(self.cursor.at.epoch)

    def __getitem__(self, step: Step) -> Any:
        """Return the batch of a step, and count it as delivered."""
        make = self._make
        if make is None or self._stands != (step.before, step.processes, self.device):
            make = self._cutter(self._stream.start(step.before, step.processes), self.device)
        # If this fails, the stream is at no position one could go on from.
        self._make = None
        batch = make(step)
        self._make = make
        self._stands = (step.after, step.processes, self.device)
        self.cursor.passed(step)
        return batch

    __getitems__ = __getitem__
    """What DataLoader calls for the items of a batch sampler; a step is its own batch."""

    def processes(self) -> Processes:
        """Return who shares the epochs now."""
        return current_processes(self._settings.rank, self._settings.world_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays."""
        self.cursor.set_epoch(epoch)


class StepSampler(BatchSampler, DistributedSampler[Any]):
    """The steps of the current epoch, from its start.

    A batch sampler, for a step is a batch. A distributed one, for it names only this process's steps:
    Lightning leaves such samplers alone.
    """

    def __init__(self, steps: TrainingSteps) -> None:
        # Neither base's constructor has anything for us: no sampler inside, no process group needed yet.
        self._steps = steps

    def __iter__(self) -> Iterator[Step]:  # type: ignore[override]  # not lists of numbers
        position = Position(self._steps.cursor.begin().epoch)
        return self._steps.schedule.steps(position, self._steps.processes())

    def __len__(self) -> int:
        """Number of steps of the current epoch."""
        epoch = Position(self._steps.cursor.at.epoch)
        return self._steps.schedule.count(epoch, self._steps.processes())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; trainers look for this method on samplers."""
        self._steps.set_epoch(epoch)
