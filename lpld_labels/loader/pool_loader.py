"""`pool_loader`: a DataLoader of training batches, images and labels as the teacher saw and gave them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader.assembly import Assembler
from lpld_labels.loader.batch import PoolBatch
from lpld_labels.loader.cursor import Schedule
from lpld_labels.loader.dataset import LabelBatches, Prepared
from lpld_labels.loader.decoders import decoder_for
from lpld_labels.loader.image_cache import MEMORY_BYTES
from lpld_labels.loader.opening import find_normalisation, make_schedule, open_reader, open_renderer
from lpld_labels.loader.share import Share
from lpld_labels.loader.streaming import StreamingLoader
from lpld_labels.pool.reader import PoolReader
from lpld_labels.replay.image_folder import check_images


class PoolLoader(StreamingLoader):
    """Yields `PoolBatch`es of `rows_per_batch` rows, or of one label batch each. Made by `pool_loader`."""

    def __init__(
        self,
        dataset: LabelBatches,
        schedule: Schedule,
        assembler: Assembler,
        *,
        rows_per_batch: int | None,
        drop_last: bool,
        **options: Any,
    ) -> None:
        self.rows_per_batch = rows_per_batch
        self._assembler = assembler
        self._drop_short = drop_last
        super().__init__(dataset, schedule, **options)

    def _steps(self, units: int) -> int:
        if self.rows_per_batch is None:
            return units
        return units // self.rows_per_batch if self._drop_short else -(-units // self.rows_per_batch)

    def _cut(self, prepared: Iterator[Prepared], share: Share) -> Iterator[tuple[PoolBatch, int]]:
        if self.rows_per_batch is None:
            for item in prepared:
                yield self._assembler.whole(item), 1
            return
        left = share.units
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
    normalised: bool = True,
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

    batch_size: rows per batch, any number. Views are mixed within their label batch first and cut into
        batches then, so pixels and labels do not depend on it. None gives each label batch as it is.
    policy, seed, batches_per_epoch: which label batches an epoch uses; see `lpld_labels.loader.sampling`.
    temperature: give softened probabilities softmax(z / temperature) instead of the stored labels.
    mean, std: of the normalisation, for pixels scaled to 0..1; the teacher's unless given.
    normalised: False gives pixels 0..255, as uint8 or, where MixUp made fractions of them, float32.
    device: finish there (normalise, decode labels) and yield tensors there; the CPU unless given.
    drop_last: leave out a last batch of fewer rows than `batch_size`.
    rank, world_size: which process of how many; from torch.distributed unless given. Processes get
        equal runs of each epoch; at most world_size - 1 rows at its end are left out (label batches
        if batch_size is None).
    num_workers, prefetch_factor, timeout, multiprocessing_context: as for DataLoader. Workers stay.
    pin_memory: yield images in pinned memory (without `device`).
    cache_directory: keep decoded images in a memory-mapped file there, for later runs too.
    memory_bytes: how much memory decoded images may take otherwise.
    verify_images: compare every image with its digest now, not when it is first used.
    """
    reader = open_reader(pool)
    if batch_size is not None and batch_size < 1:
        raise InvalidArgumentError("batch size is out of range", expected="at least 1", got=batch_size)
    if temperature is not None and not temperature > 0:
        raise InvalidArgumentError("temperature is out of range", expected="above 0", got=temperature)
    normalisation = find_normalisation(reader, mean, std) if normalised else None
    schedule = make_schedule(
        reader,
        policy=policy,
        seed=seed,
        batches_per_epoch=batches_per_epoch,
        rank=rank,
        world_size=world_size,
        whole_batches=batch_size is None,
    )
    renderer = open_renderer(
        reader,
        images_dir,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        cache_directory=cache_directory,
        memory_bytes=memory_bytes,
    )
    if verify_images:
        check_images(images_dir, reader.images)
    decoder = decoder_for(reader.codec, reader.classes)
    assembler = Assembler(
        renderer=renderer,
        decoder=decoder,
        classes=reader.images.classes.astype(np.int64),
        normalisation=normalisation,
        label_kind=reader.header.label_kind,
        temperature=temperature,
        device=torch.device("cpu" if device is None else device),
        pin_memory=pin_memory,
    )
    return PoolLoader(
        LabelBatches(reader, decoder, renderer),
        schedule,
        assembler,
        rows_per_batch=batch_size,
        drop_last=drop_last,
        pool=reader,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        timeout=timeout,
        multiprocessing_context=multiprocessing_context,
    )
