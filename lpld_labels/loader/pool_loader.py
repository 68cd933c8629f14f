"""`pool_loader` and `label_loader`: pools as `torch.utils.data.DataLoader`s for any trainer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

from lpld_labels.codecs.label_semantics import check_temperature, find_normalisation
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.images import ImageTable
from lpld_labels.io.addresses import is_address
from lpld_labels.io.disk_cache import CACHE_BYTES, DiskCache, cache_folder
from lpld_labels.loader.batches import BatchMaker, BufferPool, PoolBatch, Temperature, UndecodedBatch
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
from lpld_labels.render.apply import evaluation_input
from lpld_labels.render.device import DeviceReplay, images_fit
from lpld_labels.render.images import FolderImages, find_images
from lpld_labels.render.store import ImageStore
from lpld_labels.transforms.outputs import require_apart

Location = str | os.PathLike[str]
REPLAYS = ("auto", "cpu", "device")
LABELS = ("soft", "hard")
Maker = Callable[[Step], Any]
"""Returns the batch of a step; called once per step, in order."""


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
    labels: str | Callable[[int], str] = "soft",
    temperature: Temperature | None = None,
    normalise: bool | tuple[Sequence[float], Sequence[float]] = True,
    transform: Callable[[PoolBatch], Any] | None = None,
    device: torch.device | str | None = None,
    replay: str = "cpu",
    device_bytes: int | None = None,
    pin_memory: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    multiprocessing_context: Any = None,
    cache_directory: Location | None = None,
) -> PoolLoader:
    """Open a pool and its images for training; return a `torch.utils.data.DataLoader` of `PoolBatch`es.

    Each iteration yields the next epoch. `state_dict` and `load_state_dict` resume at the exact next batch.
    Batches do not depend on the number of workers.

    pool: the pool's path or address, or a `PoolReader`.
    images_dir: the labelled image folder; None for a pool that carries its images.
    batch_size: rows per batch and process, any number. Views are mixed within their label batch and cut
        into batches afterwards, so pixels and labels stay the same. None: whole label batches.
    drop_last: leave out a last batch of fewer rows than `batch_size`.
    equal_epochs: leave out incomplete label batches, so that all epochs have the same length; for trainers
        that read the length once (Lightning, Hugging Face's Trainer).
    sampling: which label batches an epoch uses. "shuffled": all batches before any is repeated. "batches":
        drawn with replacement, as the paper does. "epochs": a stored epoch, drawn with replacement.
        "epoch-by-epoch": stored epochs in order. "stored": batches in stored order.
    seed: random seed of the sampling. The order depends on seed and epoch only.
    batches_per_epoch: label batches per epoch; by default, one pass over the images.
    labels: "soft", "hard", or a function of the epoch that returns one of them. "soft": stored views with
        the teacher's labels. "hard": as many label batches of fresh views, which the pool's augmentation
        draws from (seed, epoch), with the images' true classes.
    temperature: a number, or a function of the epoch. The loader then yields probabilities
        softmax(z / temperature) instead of the stored labels.
    normalise: True for the mean and std of the pool's teachers; (mean, std) of pixels scaled to 0..1; False
        for pixels 0..255, uint8 or, with MixUp, float32.
    transform: called with each PoolBatch; the loader yields its result. `PoolBatch._asdict` makes the
        dictionaries that Hugging Face's Trainer takes.
    device: where to normalise, decode labels and return tensors. By default the CPU, or Accelerate's device
        after `accelerator.prepare`.
    replay: where views are rendered; pixels are the same. "cpu": by the workers. "device": on the device,
        from decoded images that stay there; workers only read labels. "auto": on the device if it is a CUDA
        GPU and the images fit.
    device_bytes: maximum size of decoded images on the device; by default half of a GPU's free memory. If
        they are larger, "device" keeps them in pinned memory and copies the images of each label batch.
    pin_memory: yield images in pinned memory (without `device`).
    rank, world_size: number of this process, and count of processes; by default torch.distributed's when
        an iteration starts. In each step, all ranks together get the rows that a single process would get
        with batches of `batch_size * world_size` rows. Ranks get equal shares; at most `world_size - 1` rows
        at an epoch's end are dropped. Tensor-parallel ranks, which need the same rows, pass the same rank.
    num_workers, prefetch_factor, multiprocessing_context: as for DataLoader. Workers persist across epochs.
    cache_directory: directory for decoded images, shared with later runs and other processes, and for the
        files of a remote pool. By default workers share decoded images in memory (up to 4 GiB), and
        downloaded files are kept in $LPLD_LABELS_CACHE or ~/.cache.
    """
    made = partial(pool_loader, **locals())
    if batch_size is not None and batch_size < 1:
        raise InvalidArgumentError("batch size is out of range", expected="at least 1", got=batch_size)
    if temperature is not None and not callable(temperature):
        check_temperature(temperature)
    processes = _check_processes(rank, world_size, num_workers, prefetch_factor)
    reader = opened(pool, cache_directory)
    normalisation = None
    if normalise is not False:
        mean, std = (None, None) if normalise is True else normalise
        normalisation = find_normalisation(reader.header, mean, std, where=reader.location)
    if labels != "soft":
        _require_hard_labels(reader, labels)
    schedule = Schedule.of(
        reader,
        sampling=sampling,
        seed=seed,
        batches_per_epoch=batches_per_epoch,
        hard=partial(_is_hard, labels),
        equal_epochs=equal_epochs,
        batch=batch_size,
        drop_last=drop_last,
    )
    images = find_images(reader, images_dir)
    if cache_directory is not None and isinstance(images, FolderImages):
        require_apart(cache_directory, images.root)
    on_device = _replays_on_device(replay, device, reader.images, device_bytes)
    store = partial(ImageStore, images, cache_directory=cache_directory)
    batches = LabelBatches(
        reader,
        None if on_device else store(workers=num_workers),
        buffers=num_workers * prefetch_factor + 1,
        shared=num_workers > 0,
        seed=seed,
    )
    classes, memory = reader.images.classes.astype(np.int64), BufferPool()

    @cache
    def replay_on(device: torch.device) -> DeviceReplay:
        how = reader.header.augmentation
        return DeviceReplay(store(memory_bytes=0), how, device, device_bytes=device_bytes)

    def cut(prepared: Iterator[Prepared], prepared_for: torch.device | None) -> Maker:
        where = torch.device(device or prepared_for or "cpu")
        maker = BatchMaker(
            prepared=prepared,
            batches=batches,
            classes=classes,
            normalisation=normalisation,
            temperature=temperature,
            pin_memory=pin_memory,
            memory=memory,
            device=where,
            replay=replay_on(where) if on_device else None,
        )

        def make(step: Step) -> Any:
            batch = maker.make(None if batch_size is None else step.units, step.before.epoch)
            return batch if transform is None else transform(batch)

        return make

    stream = LabelStream(batches, schedule, num_workers, prefetch_factor, multiprocessing_context)
    loader = PoolLoader(TrainingSteps(stream, schedule, cut, processes), pool=reader, made=made)
    loader.mean, loader.std = normalisation or (None, None)
    return loader


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

    Use it in trainers with their own image pipeline. An item is a whole label batch, because its views are
    mixed with each other. Ranks take batches in turn; up to world_size - 1 batches at an epoch's end are
    dropped. See `pool_loader` for the parameters.
    """
    made = partial(label_loader, **locals())
    processes = _check_processes(rank, world_size, num_workers, prefetch_factor)
    reader = opened(pool, cache_directory)
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

    batches = LabelBatches(reader)
    stream = LabelStream(batches, schedule, num_workers, prefetch_factor, multiprocessing_context)
    return PoolLoader(TrainingSteps(stream, schedule, cut, processes), pool=reader, made=made)


def opened(pool: PoolReader | Location, cache_directory: Location | None) -> PoolReader:
    """Return the pool's reader; a remote pool gets a disk cache."""
    if not isinstance(pool, PoolReader) and not is_address(pool):
        return PoolReader(pool)
    folder = cache_folder() if cache_directory is None else Path(cache_directory)
    cache = DiskCache(folder / "fetched", CACHE_BYTES)
    return pool.with_cache(cache) if isinstance(pool, PoolReader) else PoolReader(pool, cache=cache)


def _check_processes(
    rank: int | None, world_size: int | None, num_workers: int, prefetch_factor: int
) -> Callable[[], Processes]:
    """Check the arguments; return a function that finds this process's rank and the number of processes."""
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


def _is_hard(labels: str | Callable[[int], str], epoch: int) -> bool:
    found = labels(epoch) if callable(labels) else labels
    if found not in LABELS:
        raise InvalidArgumentError("unknown labels", expected=f"one of {', '.join(LABELS)}", got=found)
    return found == "hard"


def _require_hard_labels(pool: PoolReader, labels: str | Callable[[int], str]) -> None:
    """Refuse an unknown value of `labels`, and a pool that cannot provide hard labels."""
    _is_hard(labels, 0)
    require_true_classes(pool)
    how = pool.header.augmentation
    if how.crop_scale is None or how.drawing_problem() is not None:
        raise InvalidArgumentError(
            "hard labels require fresh views, but the pool does not record how its views were drawn",
            where=pool.location,
            hint="pools made by build record it, imported ones do not",
        )


def require_true_classes(pool: PoolReader) -> None:
    """Refuse a pool whose images and labels differ in their number of classes."""
    found = int(pool.images.classes.max()) + 1
    if found != pool.classes:
        raise InvalidArgumentError(
            "true classes are required, but images and labels differ in their number of classes",
            where=pool.location,
            expected=f"{pool.classes} class folders",
            got=found,
            hint="train with soft labels and the kl loss",
        )


def _replays_on_device(
    replay: str, device: torch.device | str | None, images: ImageTable, device_bytes: int | None
) -> bool:
    if replay not in REPLAYS:
        raise InvalidArgumentError("unknown replay", expected=f"one of {', '.join(REPLAYS)}", got=replay)
    if replay == "auto":
        where = torch.device(device or "cpu")
        return where.type == "cuda" and images_fit(images, where, device_bytes)
    return replay == "device"


class TrainingSteps(Dataset[Any]):
    """The batches of one process, indexed by step. Access is fastest in step order.

    Accelerate and Hugging Face's Trainer skip batches by wrapping a loader's `dataset` and `sampler` in a
    stock DataLoader, which yields the same batches from any step on. An iteration begins at `position`, or
    with the next epoch if the previous iteration was not finished.
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

    def __getitem__(self, step: object) -> Any:
        """Return the batch of a step and advance the position."""
        if not isinstance(step, Step):
            hint = "iterate over the loader, or use lpld_labels.loader.PoolDataset"
            raise InvalidArgumentError("a loader's dataset has no items by number", hint=hint)
        make = self._make
        if make is None or self._stands != (step.before, step.processes, self.device):
            prepared = self._stream.start(step.before, step.processes)
            make = self._cut(prepared, self.device)
        # If this fails, the stream's position is unknown: the next step starts a new stream.
        self._make = None
        batch = make(step)
        self._make = make
        self._stands = (step.after, step.processes, self.device)
        if not self._waiting:  # otherwise `place` has set the position
            self.position = step.after
            self._waiting = step.is_last
        return batch

    __getitems__ = __getitem__
    """DataLoader calls this for a batch sampler's items; a step is one batch."""

    def begin(self) -> Position:
        if not self._waiting:
            self.position = Position(self.position.epoch + 1)
        self._waiting = False
        return self.position

    def place(self, position: Position) -> None:
        self.position = position
        self._waiting = True

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A position that was set inside this epoch is kept."""
        if not (self._waiting and self.position.epoch == epoch):
            self.place(Position(epoch))


class StepSampler(BatchSampler, DistributedSampler[Any]):
    """Yields the steps of an epoch. Is a DistributedSampler because Lightning replaces other samplers."""

    def __init__(self, steps: TrainingSteps) -> None:
        # The bases' constructors need an inner sampler and a process group.
        self._steps = steps

    def __iter__(self) -> Iterator[Step]:  # type: ignore[override]  # not lists of numbers
        position = Position(self._steps.begin().epoch)
        return self._steps.schedule.steps(position, self._steps.processes())

    def __len__(self) -> int:
        return self._steps.schedule.count(Position(self._steps.position.epoch), self._steps.processes())

    def set_epoch(self, epoch: int) -> None:
        self._steps.set_epoch(epoch)


class PoolLoader(DataLoader[Any]):
    """A DataLoader made by `pool_loader` or `label_loader`.

    Only one iteration runs at a time: a new one ends the previous one. The attribute `num_workers` is 0,
    because `dataset` runs the workers. `state_dict` and `load_state_dict` work like those of torchdata's
    StatefulDataLoader, so Lightning and Accelerate save the state in their checkpoints.
    """

    dataset: TrainingSteps
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """Normalisation of the views; None if the loader does not normalise."""

    # For Accelerate: processes already share the batches, and the loader saves its position.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True
    end_of_dataloader = False
    remainder = 0

    def __init__(self, dataset: TrainingSteps, *, pool: PoolReader, made: Callable[[], PoolLoader]) -> None:
        self._made = made
        self.classes = pool.classes
        """Number of label columns C."""
        height, width = pool.header.augmentation.output_height, pool.header.augmentation.output_width
        self.size: int | tuple[int, int] = height if height == width else (height, width)
        """Side of the views; height and width if they differ."""
        self._content_digest = pool.manifest.content_digest
        self._turn = 0
        super().__init__(
            dataset,
            batch_size=None,
            sampler=StepSampler(dataset),
            collate_fn=as_it_is,
            generator=torch.Generator(),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only arguments and position. The unpickled loader starts its own workers."""
        return _made_again, (self._made, self.dataset.position)

    def __len__(self) -> int:
        """Number of batches this process yields in the current epoch.

        After resuming with a different number of processes, this is at least steps done plus steps left:
        trainers continue to count from the steps in their checkpoint, and stop at this number.
        """
        at, schedule = self.dataset.position, self.dataset.schedule
        processes = self.dataset.processes()
        whole = schedule.count(Position(at.epoch), processes)
        return max(whole, at.steps + schedule.count(at, processes)) if at.done else whole

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator is an iterator
        self._turn += 1
        return self._play(self._turn)

    def _play(self, turn: int) -> Iterator[Any]:
        steps = self.dataset
        processes = steps.processes()
        position = steps.begin()
        if position.done and not steps.schedule.count(position, processes):
            # The position was saved with fewer processes, and there are too few rows left for all.
            position = steps.begin()
        with _announced_to_accelerate(self) as steps.device:
            for step in steps.schedule.steps(position, processes):
                batch = steps[step]
                self.end_of_dataloader = step.is_last
                yield batch
                if turn != self._turn:
                    raise InvalidArgumentError(
                        "this iteration ended when a new iteration of the same loader began"
                    )

    def evaluation_transform(self) -> Callable[[Image], torch.Tensor]:
        """Return a transform of validation images: PIL image -> float32 [3, size, size], normalised.

        It crops as `lpld-labels train` does: to the middle 7/8 of the shorter side, if views have at least
        128 pixels. Smaller views show the whole shorter side.
        """
        size = (self.size, self.size) if isinstance(self.size, int) else self.size
        return partial(evaluation_input, size=size, mean=self.mean, std=self.std)

    def set_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(epoch)

    def skip_to(self, epoch: int, steps: int) -> None:
        """Start the next iteration in `epoch`, after the first `steps` steps of that epoch."""
        self.dataset.place(self.dataset.schedule.position(epoch, steps, self.dataset.processes()))

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch yielded, as JSON values."""
        return {**self._identity(), **self.dataset.position._asdict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at the batch that was next when the state was saved.

        The number of workers and processes may differ. The batch size may differ, but not change between a
        number and None. Pool, sampling and seed must be the same. All processes load the same state.
        """
        self.dataset.place(parse_state(state, self._identity()))

    def _identity(self) -> dict[str, Any]:
        identity = self.dataset.schedule.identity()
        return {"version": STATE_VERSION, "pool": self._content_digest, **identity}


def _made_again(made: Callable[[], PoolLoader], position: Position) -> PoolLoader:
    loader = made()
    loader.dataset.place(position)
    return loader


@contextmanager
def _announced_to_accelerate(loader: Any) -> Iterator[torch.device | None]:
    """Yield Accelerate's device or None. In the block, gradient accumulation also ends at the epoch's end."""
    # Accelerate marks each object it has prepared; the mark on the class does not count.
    if "_is_accelerate_prepared" not in vars(loader):
        yield None
        return
    from accelerate.state import GradientState, PartialState

    loader.end_of_dataloader = False
    state = GradientState()
    state._add_dataloader(loader)  # noqa: SLF001  # what its own loaders call; there is no public name
    try:
        yield torch.device(PartialState().device)
    finally:
        state._remove_dataloader(loader)  # noqa: SLF001
