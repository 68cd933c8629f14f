"""`pool_loader`: a DataLoader of training batches, images and labels as the teacher saw and gave them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lpld_labels.loader.assembly import Assembler
from lpld_labels.loader.batch import PoolBatch
from lpld_labels.loader.dataset import LabelBatches, Prepared
from lpld_labels.loader.decoders import decoder_for
from lpld_labels.loader.opening import (
    Location,
    find_normalisation,
    make_schedule,
    open_reader,
    open_renderer,
)
from lpld_labels.loader.settings import BatchFormat, PoolSettings, takes_options
from lpld_labels.loader.share import Step
from lpld_labels.loader.steps import TrainingSteps
from lpld_labels.loader.streaming import LabelStream
from lpld_labels.loader.streaming_loader import StreamingLoader
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.image_source import check_images, find_images


class PoolLoader(StreamingLoader):
    """Yields `PoolBatch`es, or what `batch_format` says. Made by `pool_loader`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolCutter:
    """Cuts training batches. whole_batches: each is one label batch. device: None where it was not given."""

    assembler: Assembler
    whole_batches: bool
    batch_format: BatchFormat
    device: torch.device | None

    def __call__(self, prepared: Iterator[Prepared], device: torch.device | None) -> Callable[[Step], Any]:
        chosen = self.device or device or torch.device("cpu")
        assembler = replace(self.assembler, device=chosen)
        pieces = assembler.pieces(prepared)

        def make(step: Step) -> Any:
            rows = None if self.whole_batches else step.units
            return _formatted(assembler.assemble(pieces, rows, step.epoch), self.batch_format)

        return make


def _formatted(batch: PoolBatch, batch_format: BatchFormat) -> Any:
    if batch_format == "dict":
        return batch._asdict()
    return (batch.images, batch.labels) if batch_format == "tuple" else batch


@takes_options(PoolSettings)
def pool_loader(
    settings: PoolSettings, pool: PoolReader | Location, images_dir: Location | None = None
) -> PoolLoader:
    """Open a pool and its images for training; returns a `torch.utils.data.DataLoader` of `PoolBatch`es.

    images_dir: the labelled image folder; a pool that carries its images needs none.
    Keywords: see `PoolSettings`, `ImageSettings` and `LabelSettings` in `lpld_labels.loader.settings`.
    """
    reader = open_reader(pool, settings.cache_directory, settings.cache_bytes)
    normalisation = find_normalisation(reader, settings.mean, settings.std) if settings.normalised else None
    schedule = make_schedule(
        reader,
        settings,
        batch_size=settings.batch_size,
        drop_last=settings.drop_last,
        global_batch=settings.global_batch,
    )
    images = find_images(reader, images_dir)
    renderer = open_renderer(reader, images, settings)
    if settings.verify_images:
        check_images(images)
    decoder = decoder_for(reader.codec, reader.classes)
    assembler = Assembler(
        renderer=renderer,
        decoder=decoder,
        classes=reader.images.classes.astype(np.int64),
        columns=reader.classes,
        normalisation=normalisation,
        label_kind=reader.header.label_kind,
        temperature=settings.temperature,
        device=torch.device("cpu"),
        pin_memory=settings.pin_memory,
    )
    cutter = PoolCutter(
        assembler=assembler,
        whole_batches=schedule.whole_batches,
        batch_format=settings.batch_format,
        device=None if settings.device is None else torch.device(settings.device),
    )
    stream = LabelStream(LabelBatches(reader, decoder, renderer), schedule, settings)
    return PoolLoader(TrainingSteps(stream, schedule, cutter, settings), pool=reader)
