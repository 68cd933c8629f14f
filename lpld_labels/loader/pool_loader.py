"""`pool_loader`: a DataLoader of training batches, images and labels as the teacher saw and gave them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.image_folder import check_images
from lpld_labels.loader.assembly import Assembler
from lpld_labels.loader.batch import PoolBatch
from lpld_labels.loader.cursor import Schedule
from lpld_labels.loader.dataset import LabelBatches, Prepared, Renderer
from lpld_labels.loader.decoders import decoder_for
from lpld_labels.loader.image_cache import MEMORY_BYTES, open_images
from lpld_labels.loader.processes import process_of
from lpld_labels.loader.share import Share
from lpld_labels.loader.streaming import StreamingLoader, slots_needed
from lpld_labels.reader import PoolReader, open_pool
from lpld_labels.sampling import Sampling


class PoolLoader(StreamingLoader):
    """Yields `PoolBatch`es of `rows_per_batch` rows. Made by `pool_loader`."""

    def __init__(
        self,
        dataset: LabelBatches,
        schedule: Schedule,
        assembler: Assembler,
        *,
        rows_per_batch: int,
        drop_last: bool,
        **options: Any,
    ) -> None:
        self.rows_per_batch = rows_per_batch
        self._assembler = assembler
        self._drop_short = drop_last
        super().__init__(dataset, schedule, **options)

    def _steps(self, units: int) -> int:
        return units // self.rows_per_batch if self._drop_short else -(-units // self.rows_per_batch)

    def _cut(self, prepared: Iterator[Prepared], share: Share) -> Iterator[tuple[PoolBatch, int]]:
        left = share.rows
        pieces = self._assembler.pieces(prepared, share)
        while left >= (self.rows_per_batch if self._drop_short else 1):
            rows = min(self.rows_per_batch, left)
            left -= rows
            yield self._assembler.assemble(pieces, rows), rows


def pool_loader(
    pool: PoolReader | str | os.PathLike[str],
    images_dir: str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    policy: str = "batches",
    seed: int = 0,
    batches_per_epoch: int | None = None,
    temperature: float | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    device: torch.device | str | None = None,
    drop_last: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    pin_memory: bool = False,
    timeout: float = 0,
    multiprocessing_context: Any = None,
    cache_directory: str | os.PathLike[str] | None = None,
    memory_bytes: int = MEMORY_BYTES,
    verify_images: bool = False,
) -> PoolLoader:
    """Open a pool and its images for training; returns a `torch.utils.data.DataLoader` of `PoolBatch`es.

    batch_size: rows per batch, any number; the pool's own unless given. Views are mixed within their
        label batch first and cut into batches then, so pixels and labels do not depend on it.
    policy, seed, batches_per_epoch: which label batches an epoch uses; see `lpld_labels.sampling`.
    temperature: give softened probabilities softmax(z / temperature) instead of the stored labels.
    mean, std: of the normalisation, for pixels scaled to 0..1; the teacher's unless given.
    device: finish there (normalise, decode labels) and yield tensors there; the CPU unless given.
    drop_last: leave out a last batch of fewer rows.
    rank, world_size: which process of how many; from torch.distributed unless given. Processes get
        equal runs of each epoch; at most world_size - 1 rows at its end are left out.
    num_workers, prefetch_factor, timeout, multiprocessing_context: as for DataLoader. Workers stay.
    pin_memory: yield images in pinned memory (without `device`).
    cache_directory: keep decoded images in a memory-mapped file there, for later runs too.
    memory_bytes: how much memory decoded images may take otherwise.
    verify_images: compare every image with its digest now, not when it is first used.
    """
    reader = pool if isinstance(pool, PoolReader) else open_pool(pool)
    header = reader.header
    rows_per_batch = header.batch_size if batch_size is None else batch_size
    if rows_per_batch < 1:
        raise InvalidArgumentError("batch size is out of range", expected="at least 1", got=batch_size)
    if temperature is not None and not temperature > 0:
        raise InvalidArgumentError("temperature is out of range", expected="above 0", got=temperature)
    normalisation = teacher_normalisation(reader, mean, std)
    own_rank, world = process_of(rank, world_size)
    schedule = Schedule(
        sampling=Sampling.of(reader, policy, seed=seed, batches_per_epoch=batches_per_epoch),
        sizes=reader.index.rows,
        rank=own_rank,
        world=world,
    )
    store = open_images(
        images_dir,
        reader.images,
        num_workers=num_workers,
        cache_directory=cache_directory,
        memory_bytes=memory_bytes,
    )
    if verify_images:
        check_images(images_dir, reader.images)
    slots = Renderer.slots_for(
        header.augmentation,
        header.batch_size,
        count=slots_needed(num_workers, prefetch_factor),
        mixed=True,
        shared=num_workers > 0,
    )
    renderer = Renderer(store=store, augmentation=header.augmentation, slots=slots)
    decoder = decoder_for(reader.codec, reader.classes)
    assembler = Assembler(
        renderer=renderer,
        decoder=decoder,
        classes=reader.images.classes.astype(np.int64),
        mean=normalisation[0],
        std=normalisation[1],
        label_kind=header.label_kind,
        temperature=temperature,
        device=torch.device(device) if device is not None else torch.device("cpu"),
        pin_memory=pin_memory,
    )
    return PoolLoader(
        LabelBatches(reader, decoder, renderer),
        schedule,
        assembler,
        rows_per_batch=rows_per_batch,
        drop_last=drop_last,
        content_digest=reader.manifest.content_digest,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        timeout=timeout,
        multiprocessing_context=multiprocessing_context,
    )


def teacher_normalisation(
    pool: PoolReader, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std as given, else those that all teachers of the pool share."""
    if mean is not None and std is not None:
        return tuple(mean), tuple(std)
    known = {(teacher.mean, teacher.std) for teacher in pool.header.teachers}
    found = known.pop() if len(known) == 1 else (None, None)
    if mean is not None or std is not None or found[0] is None or found[1] is None:
        raise InvalidArgumentError(
            "the normalisation is not known",
            where=pool.location,
            expected="mean and std of the teacher, or the same of all teachers",
            got=f"teachers {', '.join(teacher.name for teacher in pool.header.teachers) or 'unknown'}",
            hint="give both mean and std",
        )
    return found[0], found[1]
