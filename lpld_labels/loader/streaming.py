"""The stream behind all loaders: prepared label batches, epoch after epoch, from any position on.

A stock `torch.utils.data.DataLoader` runs the workers; its items are label batches (the rows of them
that this process takes) in the order of the schedule, so the order cannot depend on the number of
workers. Cutting them to the batches a trainer asked for happens in the training process, see `steps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from lpld_labels.errors import LabelPoolError, WorkerDiedError
from lpld_labels.loader.cursor import Schedule, Task
from lpld_labels.loader.dataset import LabelBatches, Prepared
from lpld_labels.loader.orphans import watch_parent
from lpld_labels.loader.processes import Processes
from lpld_labels.loader.settings import LabelSettings
from lpld_labels.loader.share import Position, Runs


class TaskSampler(Sampler[Task]):
    """Tasks for the workers, epoch after epoch without end, from `start` on.

    Without end, because workers should prepare the next epoch while this one is used up.
    """

    def __init__(self, batches: LabelBatches, schedule: Schedule, buffers: int) -> None:
        self.start = Position(0)
        self.processes = Processes(0, 1)
        self._batches = batches
        self._schedule = schedule
        self._buffers = buffers

    def __iter__(self) -> Iterator[Task]:
        # The order is known, so what lies elsewhere can be on its way before its turn.
        # That must not hold on to the pool: who lets go of a loader has no use for the rest.
        self._batches.expect(place for place, _ in _runs(self._schedule, self.start, self.processes))
        for made, (place, runs) in enumerate(_runs(self._schedule, self.start, self.processes)):
            self._batches.reached()
            yield Task(place, made % self._buffers, None if self._schedule.whole_batches else runs)


def _runs(schedule: Schedule, position: Position, processes: Processes) -> Iterator[tuple[int, Runs]]:
    """Yield label batches and the rows to take of each, epoch after epoch."""
    while True:
        yield from schedule.runs(position, processes)
        position = Position(position.epoch + 1)


class LabelStream:
    """Starts workers when first asked and keeps them; one stream of label batches at a time."""

    def __init__(self, batches: LabelBatches, schedule: Schedule, settings: LabelSettings) -> None:
        workers = settings.num_workers
        self._tasks = TaskSampler(batches, schedule, settings.label_batches_under_way)
        self._loader: DataLoader[Prepared | LabelPoolError] = DataLoader(
            batches,
            batch_size=None,
            sampler=self._tasks,
            collate_fn=as_it_is,
            num_workers=workers,
            prefetch_factor=settings.prefetch_factor if workers else None,
            persistent_workers=workers > 0,
            worker_init_fn=watch_parent,
            timeout=settings.timeout,
            multiprocessing_context=settings.multiprocessing_context,
            # DataLoader draws a seed for its workers; a generator of our own leaves the global one alone.
            generator=torch.Generator(),
        )

    def start(self, position: Position, processes: Processes) -> Iterator[Prepared]:
        """Return this process's label batches from a position on, without end."""
        self._tasks.start, self._tasks.processes = position, processes
        return self._checked(iter(self._loader))

    def _checked(self, items: Iterator[Prepared | LabelPoolError]) -> Iterator[Prepared]:
        while True:
            try:
                item = next(items)
            except RuntimeError as error:
                # Torch has no class of its own for workers that were killed or do not answer.
                if not str(error).startswith("DataLoader"):
                    raise
                self._loader._iterator = None  # noqa: SLF001  # lets DataLoader start new workers
                raise WorkerDiedError(
                    f"a loading process is gone: {str(error).strip()}",
                    hint="it may have run out of memory; try fewer workers, or num_workers=0",
                ) from error
            if isinstance(item, LabelPoolError):
                raise item
            yield item


def as_it_is(item: Any) -> Any:
    """Keep DataLoader from turning arrays inside an item into tensors."""
    return item
