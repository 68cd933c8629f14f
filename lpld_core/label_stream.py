"""From a pool to training batches: pixels, labels and true classes for a sequence of batch keys."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch

from lpld_core.losses import TrueClasses
from lpld_core.rendering import rendered
from lpld_labels.reader import PoolReader
from lpld_labels.records import BatchKey, LabelBatch, ViewBatch
from lpld_labels.replay import ImageStore


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """What a student sees at one step.

    pixels: uint8 or float32 [B, 3, H, W], 0..255, not normalised. labels: float32 [B, C].
    """

    pixels: torch.Tensor
    labels: torch.Tensor
    truth: TrueClasses


def training_batches(
    pool: PoolReader, store: ImageStore, keys: Iterable[BatchKey], *, workers: int = 1
) -> Generator[TrainingBatch, None, None]:
    """Yield the batches of the keys in order, prepared ahead by `workers` threads."""

    def read(key: BatchKey) -> LabelBatch:
        return pool.read(key, dtype=np.float32)

    with closing(rendered(keys, read, store, pool.header.augmentation, workers=workers)) as batches:
        for batch, pixels in batches:
            # A copy: what the reader gives may be a read-only view of the file.
            labels = torch.from_numpy(batch.labels.copy())
            yield TrainingBatch(pixels=pixels, labels=labels, truth=true_classes(batch, store))


def true_classes(batch: ViewBatch, store: ImageStore) -> TrueClasses:
    """Look up the classes of a batch's images and of those mixed into them."""
    own = store.table.classes[batch.images].astype(np.int64)
    partner, weight = own, 1.0
    if batch.mix is not None:
        partner, weight = own[batch.mix.partner], batch.mix.strength
    return TrueClasses(
        own=torch.from_numpy(own),
        partner=torch.from_numpy(partner),
        weight=torch.full((batch.rows,), weight),
    )
