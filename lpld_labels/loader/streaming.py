"""The DataLoader behind all loaders: an endless stream of label batches, played epoch by epoch.

A stock `torch.utils.data.DataLoader` runs the workers; its items are whole label batches in the order
of the schedule, so the order cannot depend on the number of workers. Cutting them to the batches a
trainer asked for, counting and resuming happen here, in the training process.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from lpld_labels.errors import InvalidArgumentError, LabelPoolError, WorkerDiedError
from lpld_labels.loader.cursor import STATE_VERSION, Cursor, Position, Schedule, TaskSampler, parse_state
from lpld_labels.loader.dataset import LabelBatches, Prepared
from lpld_labels.loader.share import Share
from lpld_labels.pool.reader import PoolReader


def slots_needed(num_workers: int, prefetch_factor: int) -> int:
    """Return how many label batches are under way at once: prepared, waiting, and the one being used."""
    if num_workers < 0 or prefetch_factor < 1:
        raise InvalidArgumentError(
            "number of workers or prefetch factor is out of range",
            expected="num_workers >= 0 and prefetch_factor >= 1",
            got=f"{num_workers} and {prefetch_factor}",
        )
    return num_workers * prefetch_factor + 1


class StreamingLoader(DataLoader[Any]):
    """Base of the loaders; see `pool_loader` and `label_loader` for what they yield.

    Each iteration plays one epoch, the next one every time. One iteration at a time: starting another
    ends the one before.
    """

    def __init__(
        self,
        dataset: LabelBatches,
        schedule: Schedule,
        *,
        pool: PoolReader,
        num_workers: int,
        prefetch_factor: int,
        timeout: float = 0,
        multiprocessing_context: Any = None,
        cursor: Cursor | None = None,
    ) -> None:
        self.schedule = schedule
        self.classes = pool.classes
        """Number of label columns C."""
        self._content_digest = pool.manifest.content_digest
        self._cursor = Cursor() if cursor is None else cursor
        self._turn = 0
        self._stream: Iterator[Prepared | LabelPoolError] | None = None
        self._stream_at: Position | None = None
        self._tasks = TaskSampler(schedule, self._cursor, slots_needed(num_workers, prefetch_factor))
        super().__init__(
            dataset,
            batch_size=None,
            sampler=self._tasks,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=num_workers > 0,
            timeout=timeout,
            multiprocessing_context=multiprocessing_context,
            # DataLoader draws a seed for its workers; a generator of our own leaves the global one alone.
            generator=torch.Generator(),
        )

    @abstractmethod
    def _cut(self, prepared: Iterator[Prepared], share: Share) -> Iterator[tuple[Any, int]]:
        """Turn the label batches of a share into what the loader yields, with the units each takes."""

    @abstractmethod
    def _steps(self, units: int) -> int:
        """Return how many batches the loader makes of some units."""

    def __len__(self) -> int:
        """Number of batches this process yields in the current epoch."""
        return self._steps(self.schedule.units(self._cursor.at.epoch))

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator does for an iterator
        self._turn += 1
        return self._play(self._turn)

    def _play(self, turn: int) -> Iterator[Any]:
        position = self._cursor.begin()
        share = self.schedule.share(position)
        prepared = self._prepared(share, self._stream_from(position))
        for batch, units in self._cut(prepared, share):
            self._cursor.advance(units)
            yield batch
            if turn != self._turn:
                raise InvalidArgumentError("another iteration of this loader has begun, which ends this one")
        # What a trainer left over (drop_last) still has to pass by.
        for _ in prepared:
            pass
        self._cursor.end_epoch()
        self._stream_at = self._cursor.at

    def _stream_from(self, position: Position) -> Iterator[Prepared | LabelPoolError]:
        """Return the stream of prepared label batches, running on if that is where it is."""
        if self._stream is None or self._stream_at != position:
            self._stream = None
            self._tasks.start = position
            self._stream = super().__iter__()
        # Until the epoch is over, the stream is at no position one could start from.
        self._stream_at = None
        return self._stream

    def _prepared(self, share: Share, stream: Iterator[Prepared | LabelPoolError]) -> Iterator[Prepared]:
        for _ in range(len(share.places)):
            try:
                item = next(stream)
            except RuntimeError as error:
                # Torch has no class of its own for workers that were killed or do not answer.
                if not str(error).startswith("DataLoader"):
                    raise
                self._stream = self._iterator = None
                raise WorkerDiedError(
                    f"a loading process is gone: {str(error).strip()}",
                    hint="it may have run out of memory; try fewer workers, or num_workers=0",
                ) from error
            if isinstance(item, LabelPoolError):
                self._stream = None
                raise item
            yield item

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays."""
        self._cursor.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is: the batch after the last one it yielded. Plain JSON values."""
        at = self._cursor.at
        if self._steps(self.schedule.units(at.epoch) - at.done) == 0:
            # The last batch of an epoch is out, but nobody has asked for the one after it.
            at = Position(at.epoch + 1, 0)
        return {**self._identity(), **at._asdict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration begin at the batch that was next when the state was saved.

        The number of workers and the batch size may differ (but for a change to or from whole label
        batches), the pool, policy, seed and number of processes may not. One process's state serves
        all processes.
        """
        self._cursor.place(parse_state(state, self._identity()))

    def _identity(self) -> dict[str, Any]:
        return {"version": STATE_VERSION, "pool": self._content_digest, **self.schedule.identity()}


def _as_it_is(item: Any) -> Any:
    """Keep DataLoader from turning arrays inside an item into tensors."""
    return item
