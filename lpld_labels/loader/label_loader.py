"""`label_loader`: a DataLoader of whole label batches, for trainers with an image pipeline of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from lpld_labels.loader.batch import UndecodedBatch
from lpld_labels.loader.cursor import Schedule
from lpld_labels.loader.dataset import LabelBatches, Prepared
from lpld_labels.loader.decoders import TorchDecoder, decoder_for
from lpld_labels.loader.opening import make_schedule, open_reader
from lpld_labels.loader.share import Share
from lpld_labels.loader.streaming import StreamingLoader
from lpld_labels.pool.reader import PoolReader


class LabelLoader(StreamingLoader):
    """Yields `UndecodedBatch`es. Made by `label_loader`."""

    def __init__(
        self,
        dataset: LabelBatches,
        schedule: Schedule,
        decoder: TorchDecoder,
        *,
        pool: PoolReader,
        **options: Any,
    ) -> None:
        self._decoder = decoder
        self._image_classes = pool.images.classes.astype(np.int64)
        super().__init__(dataset, schedule, pool=pool, **options)

    def _steps(self, units: int) -> int:
        return units

    def _cut(self, prepared: Iterator[Prepared], share: Share) -> Iterator[tuple[UndecodedBatch, int]]:
        for item in prepared:
            targets = self._image_classes[item.views.images]
            yield (
                UndecodedBatch(views=item.views, targets=targets, parts=item.parts, decoder=self._decoder),
                1,
            )


def label_loader(
    pool: PoolReader | str | os.PathLike[str],
    *,
    policy: str = "batches",
    seed: int = 0,
    batches_per_epoch: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    timeout: float = 0,
    multiprocessing_context: Any = None,
) -> LabelLoader:
    """Open a pool without its images; returns a `torch.utils.data.DataLoader` of `UndecodedBatch`es.

    One item is one label batch, since its views were mixed with each other. Processes get equal
    numbers of label batches; at most world_size - 1 at an epoch's end are left out. All parameters
    mean the same as for `pool_loader`.
    """
    reader = open_reader(pool)
    schedule = make_schedule(
        reader,
        policy=policy,
        seed=seed,
        batches_per_epoch=batches_per_epoch,
        rank=rank,
        world_size=world_size,
        whole_batches=True,
    )
    decoder = decoder_for(reader.codec, reader.classes)
    return LabelLoader(
        LabelBatches(reader, decoder, None),
        schedule,
        decoder,
        pool=reader,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        timeout=timeout,
        multiprocessing_context=multiprocessing_context,
    )
