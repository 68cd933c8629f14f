"""`label_loader`: a DataLoader of whole label batches, for trainers with an image pipeline of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lpld_labels.loader.batch import UndecodedBatch
from lpld_labels.loader.dataset import LabelBatches, Prepared
from lpld_labels.loader.decoders import TorchDecoder, decoder_for
from lpld_labels.loader.opening import Location, make_schedule, open_reader
from lpld_labels.loader.settings import LabelSettings, takes_options
from lpld_labels.loader.share import Step
from lpld_labels.loader.steps import TrainingSteps
from lpld_labels.loader.streaming import LabelStream
from lpld_labels.loader.streaming_loader import StreamingLoader
from lpld_labels.pool.reader import PoolReader


class LabelLoader(StreamingLoader):
    """Yields `UndecodedBatch`es. Made by `label_loader`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelCutter:
    """Hands over label batches. classes: int64 [N], class of each image."""

    decoder: TorchDecoder
    classes: npt.NDArray[np.int64]

    def __call__(
        self, prepared: Iterator[Prepared], device: torch.device | None
    ) -> Callable[[Step], UndecodedBatch]:
        del device

        def make(step: Step) -> UndecodedBatch:
            del step
            item = next(prepared)
            targets = self.classes[item.views.images]
            return UndecodedBatch(views=item.views, targets=targets, parts=item.parts, decoder=self.decoder)

        return make


@takes_options(LabelSettings)
def label_loader(settings: LabelSettings, pool: PoolReader | Location) -> LabelLoader:
    """Open a pool without its images; returns a `torch.utils.data.DataLoader` of `UndecodedBatch`es.

    One item is one label batch, since its views were mixed with each other. Processes take turns; at
    most world_size - 1 label batches at an epoch's end are left out. Keywords: see `LabelSettings`.
    """
    reader = open_reader(pool, settings.cache_directory, settings.cache_bytes)
    schedule = make_schedule(reader, settings)
    decoder = decoder_for(reader.codec, reader.classes)
    stream = LabelStream(LabelBatches(reader, decoder, None), schedule, settings)
    cutter = LabelCutter(decoder=decoder, classes=reader.images.classes.astype(np.int64))
    return LabelLoader(TrainingSteps(stream, schedule, cutter, settings), pool=reader)
