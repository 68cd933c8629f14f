"""Worker processes that prepare label batches: read them, split labels, render into shared memory.

A stock `torch.utils.data.DataLoader` runs the workers. Its items are this process's rows of label batches, in
the order of the schedule for any number of workers. batches.py cuts the items into training batches.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from lpld_labels.codecs.base import Parts
from lpld_labels.errors import LabelPoolError, PoolCorruptError, WorkerDiedError
from lpld_labels.format.drawing import draw_views
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.loader.schedule import Position, Processes, Runs, Schedule
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.apply import apply_views, take_views
from lpld_labels.render.store import ImageStore

CHECK_SECONDS = 1.0


class Task(NamedTuple):
    """One label batch to prepare. buffer: number of the pixel buffer. runs: ranges of rows; None: all.

    fresh: draw the views of this key; None: read the label batch at `place`.
    """

    place: int
    buffer: int
    runs: Runs | None
    fresh: BatchKey | None = None


class Prepared(NamedTuple):
    """n rows of a label batch, sent to the training process.

    slots: int64 [n]. views: the n views, then their mix partners if only some rows were requested.
    parts: labels of the n rows (`Codec.split`); () for fresh views.
    pixels: None if there are no images, or if the pixels are in buffer number `buffer`.
    """

    slots: npt.NDArray[np.int64]
    views: ViewBatch
    parts: Parts
    buffer: int
    pixels: torch.Tensor | None


class LabelBatches(Dataset[Prepared | LabelPoolError]):
    """The label batches of a pool, by task. Errors are returned, because DataLoader alters raised errors.

    store: the images; None: prepare labels only. buffers: number of buffers. Each is for the pixels of one
    label batch, uint8 or, with MixUp, float32. shared: put them into shared memory. seed: seeds fresh views.
    """

    def __init__(
        self,
        pool: PoolReader,
        store: ImageStore | None = None,
        *,
        buffers: int = 1,
        shared: bool = False,
        seed: int = 0,
    ) -> None:
        self.pool = pool
        self._store, self._seed = store, seed
        how = pool.header.augmentation
        shape = (buffers, pool.header.batch_size, how.output_height, how.output_width, 3)
        dtype = torch.float32 if how.mix == "mixup" else torch.uint8
        self.buffers = torch.empty(shape if store is not None else 0, dtype=dtype)
        if shared and store is not None:
            self.buffers.share_memory_()  # type: ignore[no-untyped-call]  # torch does not annotate it

    def __len__(self) -> int:
        return len(self.pool)

    def __getitem__(self, task: Task) -> Prepared | LabelPoolError:
        try:
            return self.prepare(task)
        except LabelPoolError as error:
            return error

    def prepare(self, task: Task) -> Prepared:
        views, parts = self._stored(task.place) if task.fresh is None else (self._drawn(task.fresh), ())
        slots = np.arange(views.rows)
        if task.runs not in (None, ((0, views.rows),)):
            slots = np.concatenate([slots[start:stop] for start, stop in task.runs or ()])
            views = take_views(views, slots)
            parts = tuple(part[slots] for part in parts)
        pixels = None if self._store is None else self._render(self._store, views, task.buffer)
        return Prepared(slots=slots, views=views, parts=parts, buffer=task.buffer, pixels=pixels)

    def _drawn(self, key: BatchKey) -> ViewBatch:
        header = self.pool.header
        # The pool's views may have been drawn from the same seed.
        seed = int(keyed_generator(self._seed, Stream.FRESH_VIEWS).random() * 2**53)
        return draw_views(
            header.augmentation,
            self.pool.images,
            seed=seed,
            epoch=key.epoch,
            batch=key.batch,
            batch_size=header.batch_size,
        )

    def _stored(self, place: int) -> tuple[ViewBatch, Parts]:
        encoded = self.pool.encoded_at(place)
        views = encoded.views
        try:
            return views, self.pool.codec.split(encoded.payload, rows=views.rows, classes=self.pool.classes)
        except PoolCorruptError as error:
            where = f"{self.pool.location}, {views.key}"
            raise PoolCorruptError(**{**error.parts(), "where": where}) from None

    def _render(self, store: ImageStore, views: ViewBatch, buffer: int) -> torch.Tensor | None:
        """Write the pixels into a buffer, or return them if they do not fit the buffer's dtype."""
        how = self.pool.header.augmentation
        fractions = views.mix is not None and views.mix.box is None
        if fractions and self.buffers.dtype == torch.uint8:
            return apply_views(views, store, how, inside=True)
        out = self.pixels(buffer, views.rows)
        apply_views(views, store, how, dtype=out.dtype, out=out, inside=True)
        return None

    def pixels(self, buffer: int, rows: int) -> torch.Tensor:
        """Return the first rows of a buffer: [rows, 3, H, W], channels-last."""
        return self.buffers[buffer, :rows].permute(0, 3, 1, 2)


class TaskSampler(Sampler[Task]):
    """Yields tasks from `start` on, endlessly, so that workers prepare the next epoch early."""

    def __init__(self, batches: LabelBatches, schedule: Schedule, buffers: int) -> None:
        self.start = Position(0)
        self.processes = Processes(0, 1)
        self._pool = batches.pool
        self._schedule = schedule
        self._buffers = buffers

    def __iter__(self) -> Iterator[Task]:
        schedule, position, processes = self._schedule, self.start, self.processes
        buffers, prefetching = itertools.cycle(range(self._buffers)), False
        while True:
            hard = schedule.hard(position.epoch)
            if not hard and not prefetching:
                # The generator must not keep the pool alive: prefetching stops once the loader is
                # garbage-collected.
                self._pool.prefetch(_stored_places(schedule, position, processes))
            prefetching = not hard
            for place, runs in schedule.runs(position, processes):
                if not hard:
                    self._pool.advance()
                fresh = schedule.fresh_key(position.epoch, place)
                yield Task(place, next(buffers), None if schedule.batch is None else runs, fresh)
            position = Position(position.epoch + 1)


def _stored_places(schedule: Schedule, position: Position, processes: Processes) -> Iterator[int]:
    """Yield the places to read: begin at a position, and stop before the next epoch of hard labels."""
    while not schedule.hard(position.epoch):
        for place, _ in schedule.runs(position, processes):
            yield place
        position = Position(position.epoch + 1)


class LabelStream:
    """Starts workers on first use and keeps them alive. Serves one stream of label batches at a time."""

    def __init__(
        self,
        batches: LabelBatches,
        schedule: Schedule,
        num_workers: int,
        prefetch_factor: int,
        multiprocessing_context: Any,
    ) -> None:
        self._tasks = TaskSampler(batches, schedule, num_workers * prefetch_factor + 1)
        self._loader: DataLoader[Prepared | LabelPoolError] = DataLoader(
            batches,
            batch_size=None,
            sampler=self._tasks,
            collate_fn=as_it_is,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=num_workers > 0,
            worker_init_fn=watch_parent,
            multiprocessing_context=multiprocessing_context,
            # DataLoader draws a seed for its workers; a separate generator leaves the global one alone.
            generator=torch.Generator(),
        )

    def start(self, position: Position, processes: Processes) -> Iterator[Prepared]:
        """Return an endless iterator of this process's label batches from a position on."""
        self._tasks.start, self._tasks.processes = position, processes
        return self._checked(iter(self._loader))

    def _checked(self, items: Iterator[Prepared | LabelPoolError]) -> Iterator[Prepared]:
        while True:
            try:
                item = next(items)
            except RuntimeError as error:
                # Torch has no error class for dead workers.
                if not str(error).startswith("DataLoader"):
                    raise
                self._loader._iterator = None  # noqa: SLF001  # lets DataLoader start new workers
                raise WorkerDiedError(
                    f"a loading process died: {str(error).strip()}",
                    hint="it may have run out of memory; try fewer workers, or num_workers=0",
                ) from error
            if isinstance(item, LabelPoolError):
                raise item
            yield item


def as_it_is(item: Any) -> Any:
    """Return the item unchanged. DataLoader's default would turn its arrays into tensors."""
    return item


def watch_parent(worker: int) -> None:
    """End this process when its parent ends. DataLoader calls this as worker_init_fn.

    DataLoader's own check comes too late: a worker first writes its results to a pipe that nobody reads and
    that never breaks, because every worker keeps the reading end open.
    """
    del worker
    threading.Thread(target=_exit_after, args=(os.getppid(),), name="parent watch", daemon=True).start()


def _exit_after(parent: int) -> None:
    process = multiprocessing.parent_process()
    sentinels = [process.sentinel] if process is not None else []
    # The sentinel covers a parent that ended before this thread began, or that used a fork server; getppid
    # covers a sentinel whose other end another process inherited.
    while os.getppid() == parent and not connection.wait(sentinels, CHECK_SECONDS):
        pass
    # A normal exit would hang in clean-up.
    os._exit(1)
