"""`pool_loader` and `label_loader`: pools as `torch.utils.data.DataLoader`s that any trainer takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

from lpld_labels.codecs.label_semantics import check_temperature, find_normalisation
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.io.addresses import is_address
from lpld_labels.io.disk_cache import CACHE_BYTES, DiskCache, cache_folder
from lpld_labels.loader.batches import (
    BatchMaker,
    BufferPool,
    PoolBatch,
    Temperature,
    UndecodedBatch,
)
from lpld_labels.loader.schedule import (
    STATE_VERSION,
    Position,
    Processes,
    Schedule,
    Step,
    current_processes,
    parse_state,
)
from lpld_labels.loader.workers import LabelBatches, LabelStream, Prepared, as_it_is
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.images import FolderImages, find_images
from lpld_labels.render.store import ImageStore
from lpld_labels.transforms.outputs import require_apart

Location = str | os.PathLike[str]
Maker = Callable[[Step], Any]
"""Makes the batch of each step, one step after the other."""
FETCHED = "fetched"
"""Folder of the cache directory for files of remote pools."""


def pool_loader(
    pool: PoolReader | Location,
    images_dir: Location | None = None,
    *,
    batch_size: int | None = None,
    drop_last: bool = False,
    equal_epochs: bool = False,
    sampling: str = "shuffled",
    seed: int = 0,
    batches_per_epoch: int | None = None,
    temperature: Temperature | None = None,
    normalise: bool | tuple[Sequence[float], Sequence[float]] = True,
    transform: Callable[[PoolBatch], Any] | None = None,
    device: torch.device | str | None = None,
    pin_memory: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    multiprocessing_context: Any = None,
    cache_directory: Location | None = None,
) -> PoolLoader:
    """Open a pool and its images for training; return a `torch.utils.data.DataLoader` of `PoolBatch`es.

    Every iteration is the next epoch. `state_dict` and `load_state_dict` resume at the exact next batch.
    Batches do not depend on the number of workers. A `PoolBatch` has the fields images (normalised float32
    [B, 3, H, W]), labels (float32 [B, C]), targets, partner_targets, mix_strength and keys.

    pool: the pool's path or address, or a `PoolReader`.
    images_dir: the labelled image folder; None for a pool that carries its images.
    batch_size: rows per batch and process, any number. Views are mixed within their label batch and cut
        into batches afterwards, so pixels and labels do not depend on it. None: whole label batches.
    drop_last: leave out a last batch of fewer rows than `batch_size`.
    equal_epochs: leave out incomplete label batches, so that all epochs have the same length; for trainers
        that ask for the length once (Lightning, Hugging Face's Trainer).
    sampling: which label batches an epoch uses. "shuffled": each once before any comes again. "batches":
        drawn with replacement, as the paper does. "epochs": a stored epoch, drawn with replacement.
        "epoch-by-epoch": stored epochs in order. "stored": batches in stored order.
    seed: of the sampling. The order depends on seed and epoch only.
    batches_per_epoch: label batches of an epoch; by default, one pass over the images.
    temperature: yield probabilities softmax(z / temperature) instead of the stored labels: a number, or a
        function of the epoch.
    normalise: True for the mean and std of the pool's teachers; (mean, std) of pixels scaled to 0..1; False
        for pixels 0..255, uint8 or, with MixUp, float32.
    transform: called with each PoolBatch; the loader yields its result. `PoolBatch._asdict` makes the
        dictionaries that Hugging Face's Trainer takes.
    device: normalise, decode labels and return tensors there. By default the CPU, or Accelerate's device
        after `accelerator.prepare`.
    pin_memory: yield images in pinned memory (without `device`).
    rank, world_size: this process and the number of processes; by default torch.distributed's when an
        iteration starts. Step s of all ranks together is step s of one process with batches of
        `batch_size * world_size` rows. Ranks get equal shares; at most `world_size - 1` rows at an epoch's
        end are left out. Tensor-parallel ranks, which need the same rows, pass the same rank.
    num_workers, prefetch_factor, multiprocessing_context: as for DataLoader. Workers stay alive.
    cache_directory: keep decoded images there, in a file shared with later runs and other processes, and
        files fetched from a remote pool. By default workers share decoded images in memory (up to 4 GiB),
        and fetched files are kept in $LPLD_LABELS_CACHE or ~/.cache.
    """
    if batch_size is not None and batch_size < 1:
        raise InvalidArgumentError("batch size is out of range", expected="at least 1", got=batch_size)
    if temperature is not None and not callable(temperature):
        check_temperature(temperature)
    processes = _check_processes(rank, world_size, num_workers, prefetch_factor)
    reader = _opened(pool, cache_directory)
    normalisation = None
    if normalise is not False:
        mean, std = (None, None) if normalise is True else normalise
        normalisation = find_normalisation(reader.header, mean, std, where=reader.location)
    schedule = Schedule.of(
        reader,
        sampling=sampling,
        seed=seed,
        batches_per_epoch=batches_per_epoch,
        equal_epochs=equal_epochs,
        batch=batch_size,
        drop_last=drop_last,
    )
    images = find_images(reader, images_dir)
    if cache_directory is not None and isinstance(images, FolderImages):
        require_apart(cache_directory, images.root)
    batches = LabelBatches(
        reader,
        ImageStore(images, cache_directory=cache_directory, workers=num_workers),
        buffers=num_workers * prefetch_factor + 1,
        shared=num_workers > 0,
    )
    classes, memory = reader.images.classes.astype(np.int64), BufferPool()

    def cut(prepared: Iterator[Prepared], prepared_for: torch.device | None) -> Maker:
        maker = BatchMaker(
            prepared=prepared,
            batches=batches,
            classes=classes,
            normalisation=normalisation,
            temperature=temperature,
            pin_memory=pin_memory,
            memory=memory,
            device=torch.device(device or prepared_for or "cpu"),
        )

        def make(step: Step) -> Any:
            batch = maker.make(None if batch_size is None else step.units, step.before.epoch)
            return batch if transform is None else transform(batch)

        return make

    stream = LabelStream(
        batches,
        schedule,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        multiprocessing_context=multiprocessing_context,
    )
    return PoolLoader(TrainingSteps(stream, schedule, cut, processes), pool=reader)


def label_loader(
    pool: PoolReader | Location,
    *,
    equal_epochs: bool = False,
    sampling: str = "shuffled",
    seed: int = 0,
    batches_per_epoch: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    multiprocessing_context: Any = None,
    cache_directory: Location | None = None,
) -> PoolLoader:
    """Open a pool without its images; return a `torch.utils.data.DataLoader` of `UndecodedBatch`es.

    For trainers with their own image pipeline. One item is one label batch, since its views are mixed with
    each other. Processes take turns; at most world_size - 1 label batches at an epoch's end are left out.
    Parameters are those of `pool_loader`.
    """
    processes = _check_processes(rank, world_size, num_workers, prefetch_factor)
    reader = _opened(pool, cache_directory)
    schedule = Schedule.of(
        reader, sampling=sampling, seed=seed, batches_per_epoch=batches_per_epoch, equal_epochs=equal_epochs
    )
    classes = reader.images.classes.astype(np.int64)

    def cut(prepared: Iterator[Prepared], _: torch.device | None) -> Maker:
        def make(_: Step) -> UndecodedBatch:
            item = next(prepared)
            targets = classes[item.views.images]
            return UndecodedBatch(views=item.views, targets=targets, parts=item.parts, codec=reader.codec)

        return make

    stream = LabelStream(
        LabelBatches(reader),
        schedule,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        multiprocessing_context=multiprocessing_context,
    )
    return PoolLoader(TrainingSteps(stream, schedule, cut, processes), pool=reader)


def _opened(pool: PoolReader | Location, cache_directory: Location | None) -> PoolReader:
    """Return the pool's reader, with a disk cache for a remote pool."""
    if isinstance(pool, PoolReader):
        return pool
    if not is_address(pool):
        return PoolReader(pool)
    folder = cache_folder() if cache_directory is None else Path(cache_directory)
    return PoolReader(pool, cache=DiskCache(folder / FETCHED, CACHE_BYTES))


def _check_processes(
    rank: int | None, world_size: int | None, num_workers: int, prefetch_factor: int
) -> Callable[[], Processes]:
    """Return a function that gives this process's rank and the number of processes when it is called."""
    if num_workers < 0 or prefetch_factor < 1:
        raise InvalidArgumentError(
            "number of workers or prefetch factor is out of range",
            expected="num_workers >= 0 and prefetch_factor >= 1",
            got=f"{num_workers} and {prefetch_factor}",
        )
    if (rank is None) != (world_size is None):
        raise InvalidArgumentError("give rank and world_size together", got=f"{rank} and {world_size}")
    if rank is not None and world_size is not None and not 0 <= rank < world_size:
        raise InvalidArgumentError("rank is out of range", expected=f"0 to {world_size - 1}", got=rank)
    return partial(current_processes, rank, world_size)


class TrainingSteps(Dataset[Any]):
    """The batches of this process by step, in any order; fast in the order of the steps.

    Accelerate and Hugging Face's Trainer wrap a loader's `dataset` and `sampler` in a stock DataLoader to
    skip batches; they get the same batches from any step on.

    An iteration begins at `position`, or with the next epoch if the previous one was left in the middle.
    """

    def __init__(
        self,
        stream: LabelStream,
        schedule: Schedule,
        cut: Callable[[Iterator[Prepared], torch.device | None], Maker],
        processes: Callable[[], Processes],
    ) -> None:
        self.schedule = schedule
        self.position = Position(0)
        self.processes = processes
        self.device: torch.device | None = None
        self._stream = stream
        self._cut = cut
        self._make: Maker | None = None
        self._stands: tuple[Position, Processes, torch.device | None] | None = None
        self._waiting = True

    def __len__(self) -> int:
        """Number of rows in the current epoch, of all processes together."""
        return self.schedule.rows_of(self.position.epoch)

    def __getitem__(self, step: Step) -> Any:
        """Return the batch of a step, and count it as delivered."""
        make = self._make
        if make is None or self._stands != (step.before, step.processes, self.device):
            prepared = self._stream.start(step.before, step.processes)
            make = self._cut(prepared, self.device)
        # If this fails, the stream's position is unknown, and the next step starts a new one.
        self._make = None
        batch = make(step)
        self._make = make
        self._stands = (step.after, step.processes, self.device)
        if not self._waiting:  # else the position was set meanwhile
            self.position = step.after
            self._waiting = step.is_last
        return batch

    __getitems__ = __getitem__
    """DataLoader calls this for the items of a batch sampler; a step is one batch."""

    def begin(self) -> Position:
        """Start an iteration and return its position."""
        if not self._waiting:
            self.position = Position(self.position.epoch + 1)
        self._waiting = False
        return self.position

    def place(self, position: Position) -> None:
        """Begin the next iteration at a position."""
        self.position = position
        self._waiting = True

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a position inside that epoch is kept."""
        if not (self._waiting and self.position.epoch == epoch):
            self.place(Position(epoch))


class StepSampler(BatchSampler, DistributedSampler[Any]):
    """The steps of the current epoch, from its start.

    A distributed batch sampler: a step is a batch, and Lightning does not replace distributed samplers.
    """

    def __init__(self, steps: TrainingSteps) -> None:
        # Not the bases' constructors: there is no inner sampler, and no process group yet.
        self._steps = steps

    def __iter__(self) -> Iterator[Step]:  # type: ignore[override]  # not lists of numbers
        position = Position(self._steps.begin().epoch)
        return self._steps.schedule.steps(position, self._steps.processes())

    def __len__(self) -> int:
        """Number of steps of the current epoch."""
        return self._steps.schedule.count(Position(self._steps.position.epoch), self._steps.processes())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; trainers look for this method on samplers."""
        self._steps.set_epoch(epoch)


class PoolLoader(DataLoader[Any]):
    """A DataLoader made by `pool_loader` or `label_loader`.

    One iteration at a time: starting another ends the previous one. Its own `num_workers` is 0, because the
    workers belong to `dataset`. `state_dict` and `load_state_dict` work as those of torchdata's
    StatefulDataLoader, which Lightning and Accelerate put into their checkpoints.
    """

    dataset: TrainingSteps

    # Accelerate looks for these: processes already share the batches, and the loader saves its position.
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

        After a resume with another number of processes, at least the steps done plus those left: trainers
        that resume counting from a checkpoint stop at this number.
        """
        at, schedule = self.dataset.position, self.dataset.schedule
        processes = self.dataset.processes()
        whole = schedule.count(Position(at.epoch), processes)
        return max(whole, at.steps + schedule.count(at, processes)) if at.done else whole

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator does for an iterator
        self._turn += 1
        return self._play(self._turn)

    def _play(self, turn: int) -> Iterator[Any]:
        steps = self.dataset
        processes = steps.processes()
        position = steps.begin()
        if position.done and not steps.schedule.count(position, processes):
            # Saved by fewer processes than share the few rows that are left.
            position = steps.begin()
        steps.device = _accelerator_device(self)
        with _announced_to_accelerate(self):
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
        """Begin the next iteration in an epoch after some of its steps."""
        self.dataset.place(self.dataset.schedule.position(epoch, steps, self.dataset.processes()))

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch yielded, as JSON values."""
        return {**self._identity(), **self.dataset.position._asdict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at the batch that was next when the state was saved.

        The number of workers and processes may differ, and the batch size except to or from whole label
        batches; the pool, sampling and seed may not. All processes have the same state.
        """
        self.dataset.place(parse_state(state, self._identity()))

    def _identity(self) -> dict[str, Any]:
        identity = self.dataset.schedule.identity()
        return {"version": STATE_VERSION, "pool": self._content_digest, **identity}


# After `accelerator.prepare`, Accelerate expects batches on its device, and to know which loader is in use
# and when its last batch is out (gradient accumulation ends with an epoch).


def _prepared(loader: Any) -> bool:
    # Accelerate marks each object it has prepared; the class's own mark says something else.
    return "_is_accelerate_prepared" in vars(loader)


def _accelerator_device(loader: Any) -> torch.device | None:
    """Return the device of the accelerator that has prepared the loader, or None."""
    if not _prepared(loader):
        return None
    from accelerate.state import PartialState

    return torch.device(PartialState().device)


@contextmanager
def _announced_to_accelerate(loader: Any) -> Iterator[None]:
    """Let Accelerate know that the loader is in use, if it has prepared it."""
    if not _prepared(loader):
        yield
        return
    from accelerate.state import GradientState

    loader.end_of_dataloader = False
    state = GradientState()
    state._add_dataloader(loader)  # noqa: SLF001  # what its own loaders call; there is no public name
    try:
        yield
    finally:
        state._remove_dataloader(loader)  # noqa: SLF001
