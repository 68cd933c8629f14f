"""`PoolDataset`: the views of a pool by number, for any sampler and DataLoader."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from operator import index, itemgetter

import numpy as np
import torch
from torch.utils.data import Dataset

from lpld_labels.codecs.label_semantics import check_temperature, softened
from lpld_labels.errors import InvalidArgumentError, LabelPoolError
from lpld_labels.format.records import ViewBatch
from lpld_labels.loader.batches import Integers, PoolBatch, UndecodedBatch, view_facts
from lpld_labels.loader.pool_loader import Location, Normalise, image_store, opened, wanted_normalisation
from lpld_labels.loader.workers import LabelBatches, Task
from lpld_labels.pool.block_cache import BlockCache
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.apply import apply_views, normalise, take_views

DECODED_BYTES = 64 * 1024 * 1024
_Decoded = tuple[int, ViewBatch, torch.Tensor]
"""(bytes of the labels, views, labels) of a label batch."""


class PoolDataset(Dataset[PoolBatch]):
    """The views of a pool in stored order, by number: a map-style dataset.

    An item is a `PoolBatch` without its first dimension: images float32 [3, H, W], labels float32 [C], keys
    int64 [3], and the scalars targets, partner_targets (int64) and mix_strength (float32). DataLoader's
    default collation stacks items to `PoolBatch`es. Pixels and labels are bit for bit those that
    `pool_loader` yields with whole label batches.

    epochs, classes: use only the views of these stored epochs, and of images of these classes; None for all.
    See `pool_loader` for the other parameters; `temperature` is a number.

    A label batch is decoded as a whole, and the last ones are kept. So samplers that keep neighbours together
    are fast. In random order, every item may decode a label batch.
    """

    def __init__(
        self,
        pool: PoolReader | Location,
        images_dir: Location | None = None,
        *,
        epochs: Collection[int] | None = None,
        classes: Collection[int] | None = None,
        temperature: float | None = None,
        normalise: Normalise = True,
        cache_directory: Location | None = None,
    ) -> None:
        self._pool = opened(pool, cache_directory)
        self._normalisation = wanted_normalisation(self._pool, normalise)
        if temperature is not None:
            check_temperature(temperature)
        self._temperature = temperature
        # One worker stands for all: they share decoded images.
        self._store = image_store(self._pool, images_dir, cache_directory, workers=1)
        self._batches = LabelBatches(self._pool)
        self._classes = self._pool.images.classes.astype(np.int64)
        found = self._pool.index
        self._places = np.arange(len(found))
        if epochs is not None:
            self._places = np.flatnonzero(np.isin(found.epochs, list(epochs)))
        self._slots: list[Integers] | None = None
        sizes = found.rows[self._places]
        if classes is not None:
            shown = [self._classes[self._pool.images_at(place)] for place in self._places.tolist()]
            self._slots = [np.flatnonzero(np.isin(labels, list(classes))) for labels in shown]
            sizes = np.array([len(slots) for slots in self._slots], np.int64)
        self._ends = np.cumsum(sizes, dtype=np.int64)
        if not len(self):
            problem = "the pool has no views of these epochs and classes"
            raise InvalidArgumentError(problem, where=self._pool.location)
        self._decoded: BlockCache[_Decoded] = BlockCache(DECODED_BYTES, itemgetter(0))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, number: int) -> PoolBatch:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[PoolBatch]:
        """Return several items. Those of one label batch are rendered together."""
        rows = np.array([self._row(number) for number in numbers], np.int64)
        batches = np.searchsorted(self._ends, rows, side="right")
        items: dict[int, PoolBatch] = {}
        for batch in np.unique(batches).tolist():
            here = np.unique(rows[batches == batch])
            slots = here - (self._ends[batch - 1] if batch else 0)
            if self._slots is not None:
                slots = self._slots[batch][slots]
            rendered = self._rendered(int(self._places[batch]), slots)
            items.update(zip(here.tolist(), map(PoolBatch._make, zip(*rendered, strict=True)), strict=True))
        return [items[row] for row in rows.tolist()]

    def _row(self, number: int) -> int:
        row = index(number)
        if not -len(self) <= row < len(self):
            raise IndexError(f"no view {row} among {len(self)}")  # the error that ends a loop over items
        return row % len(self)

    def _rendered(self, place: int, slots: Integers) -> PoolBatch:
        """Return the views `slots` of the label batch at a place."""
        _, views, labels = self._decoded.get(place, partial(self._decode, place))
        views, how = take_views(views, slots), self._pool.header.augmentation
        exact = self._normalisation is not None or how.mix == "mixup"
        images = apply_views(
            views, self._store, how, dtype=torch.float32 if exact else torch.uint8, inside=True
        )
        if self._normalisation is not None:
            images = normalise(images, *self._normalisation, out=images)
        return PoolBatch(images[: len(slots)], labels[slots], *view_facts(views, slots, self._classes))

    def _decode(self, place: int) -> _Decoded:
        item = self._batches[Task(place, 0, None)]
        if isinstance(item, LabelPoolError):
            raise item
        batch = UndecodedBatch(views=item.views, targets=item.slots, parts=item.parts, codec=self._pool.codec)
        labels = batch.labels()
        if self._temperature is not None:
            labels = softened(labels, self._pool.header.label_kind, self._temperature)
        return labels.nbytes, item.views, labels
