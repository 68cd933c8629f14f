"""The DataLoader that all factories return: plays epochs, counts, resumes, shares with other processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader.accelerate_hooks import accelerator_device, told_accelerate
from lpld_labels.loader.cursor import STATE_VERSION, parse_state
from lpld_labels.loader.share import Position
from lpld_labels.loader.steps import StepSampler, TrainingSteps
from lpld_labels.loader.streaming import as_it_is
from lpld_labels.pool.reader import PoolReader


class StreamingLoader(DataLoader[Any]):
    """Base of the loaders; see `pool_loader` and `label_loader` for what they yield.

    Each iteration plays one epoch, the next one every time. One iteration at a time: starting another
    ends the one before. Workers are behind `dataset`; `num_workers`, which counts those in front of it,
    is 0.

    It keeps its place as torchdata's StatefulDataLoader does (`state_dict`, `load_state_dict`), which
    Lightning and Accelerate put into their checkpoints.
    """

    dataset: TrainingSteps

    # What Accelerate looks for. It would take the loader apart to share out its batches, which are
    # shared out already, so we say that this has been done; and that we keep our place ourselves.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True
    end_of_dataloader = False
    remainder = 0

    def __init__(self, dataset: TrainingSteps, *, pool: PoolReader) -> None:
        self.classes = pool.classes
        """Number of label columns C."""
        self._content_digest = pool.manifest.content_digest
        self._turn = 0
        super().__init__(
            dataset,
            batch_size=None,
            sampler=StepSampler(dataset),
            collate_fn=as_it_is,
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        """Number of batches this process yields in the current epoch.

        In one resumed with another number of processes, at least those before and those still to come:
        trainers that go on counting from a checkpoint stop at this number.
        """
        at, schedule = self.dataset.cursor.at, self.dataset.schedule
        processes = self.dataset.processes()
        whole = schedule.count(Position(at.epoch), processes)
        return max(whole, at.steps + schedule.count(at, processes)) if at.done else whole

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator does for an iterator
        self._turn += 1
        return self._play(self._turn)

    def _play(self, turn: int) -> Iterator[Any]:
        steps, cursor = self.dataset, self.dataset.cursor
        processes = steps.processes()
        position = cursor.begin()
        if position.done and not steps.schedule.count(position, processes):
            # Saved by fewer processes than share the few rows that are left.
            position = cursor.begin()
        steps.device = accelerator_device(self)
        with told_accelerate(self):
            for step in steps.schedule.steps(position, processes):
                batch = steps[step]
                self.end_of_dataloader = step.is_last
                yield batch
                if turn != self._turn:
                    raise InvalidArgumentError(
                        "another iteration of this loader has begun, which ends this one"
                    )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays."""
        self.dataset.set_epoch(epoch)

    def skip_to(self, epoch: int, steps: int) -> None:
        """Let the next iteration begin in an epoch after some of its steps, which are not played."""
        at = self.dataset.schedule.position(epoch, steps, self.dataset.processes())
        self.dataset.cursor.place(at)

    def rows_of_steps(self) -> list[int]:
        """Return the rows of each step of the current epoch, of all processes together."""
        return self.dataset.schedule.rows_of_steps(self.dataset.cursor.at.epoch, self.dataset.processes())

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is: the batch after the last one it yielded. Plain JSON values."""
        return {**self._identity(), **self.dataset.cursor.at._asdict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration begin at the batch that was next when the state was saved.

        The number of workers, the batch size (but for a change to or from whole label batches) and the
        number of processes may differ, the pool, policy and seed may not. All processes have the same
        state: one serves all.
        """
        self.dataset.cursor.place(parse_state(state, self._identity()))

    def _identity(self) -> dict[str, Any]:
        identity = self.dataset.schedule.identity()
        return {"version": STATE_VERSION, "pool": self._content_digest, **identity}
