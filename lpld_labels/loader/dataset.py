"""`PoolDataset`: the views of a pool by number, for any sampler and DataLoader."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from operator import itemgetter

import numpy as np
import torch
from torch.utils.data import Dataset

from lpld_labels.codecs.label_semantics import check_temperature, softened
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.records import ViewBatch
from lpld_labels.loader.batches import Integers, PoolBatch, as_tensor, view_facts
from lpld_labels.loader.pool_loader import Location, opened, pool_loader
from lpld_labels.loader.workers import LabelBatches, Task
from lpld_labels.pool.block_cache import BlockCache
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.apply import apply_views, normalise, take_views
from lpld_labels.render.images import find_images
from lpld_labels.render.store import ImageStore

DECODED_BYTES = 64 * 1024 * 1024


class PoolDataset(Dataset[PoolBatch]):
    """The views of a pool in stored order, by number: a map-style dataset.

    An item is a `PoolBatch` without its first dimension: images [3, H, W], labels [C], keys [3], and scalars.
    DataLoader's default collation stacks items to `PoolBatch`es. Items are bit for bit the rows that
    `pool_loader` yields with whole label batches. A label batch is decoded as a whole, and the last few stay
    in memory. So access is fast if neighbours are requested together.

    epochs: use only views of these stored epochs. classes: use only views of images of these classes. None:
    use all. For the other parameters, see `pool_loader`.
    """

    def __init__(
        self,
        pool: PoolReader | Location,
        images_dir: Location | None = None,
        *,
        epochs: Collection[int] | None = None,
        classes: Collection[int] | None = None,
        temperature: float | None = None,
        normalise: bool | tuple[Sequence[float], Sequence[float]] = True,
        cache_directory: Location | None = None,
    ) -> None:
        self._pool = opened(pool, cache_directory)
        loader = pool_loader(self._pool, images_dir, normalise=normalise, cache_directory=cache_directory)
        self._mean, self._std = loader.mean, loader.std
        check_temperature(1.0 if temperature is None else temperature)
        self._temperature = temperature
        images = find_images(self._pool, images_dir)
        # With workers=1, all processes of a DataLoader share the decoded images.
        self._store = ImageStore(images, cache_directory=cache_directory, workers=1)
        self._classes = self._pool.images.classes.astype(np.int64)
        found = self._pool.index
        self._ends = np.cumsum(found.rows, dtype=np.int64)
        self._rows: Sequence[int] | Integers = range(int(self._ends[-1]))
        if epochs is not None:
            self._rows = np.flatnonzero(np.isin(np.repeat(found.epochs, found.rows), list(epochs)))
        if classes is not None:
            places = np.unique(np.searchsorted(self._ends, self._rows, side="right")).tolist()
            targets = [self._classes[:0], *(self._classes[self._pool.images_at(place)] for place in places)]
            self._rows = np.asarray(self._rows)[np.isin(np.concatenate(targets), list(classes))]
        if not len(self._rows):
            raise InvalidArgumentError("no views of these epochs and classes", where=self._pool.location)
        self._decoded = BlockCache[tuple[int, ViewBatch, torch.Tensor]](DECODED_BYTES, itemgetter(0))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> PoolBatch:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[PoolBatch]:
        """Return several items. Those of one label batch are rendered together."""
        rows = np.array([self._rows[number] for number in numbers], np.int64)
        places = np.searchsorted(self._ends, rows, side="right")
        items: dict[int, PoolBatch] = {}
        for place in np.unique(places).tolist():
            here = np.unique(rows[places == place])
            batch = self._rendered(place, here - (self._ends[place] - self._pool.index.rows[place]))
            items.update(zip(here.tolist(), map(PoolBatch._make, zip(*batch, strict=True)), strict=True))
        return [items[row] for row in rows.tolist()]

    def _rendered(self, place: int, slots: Integers) -> PoolBatch:
        _, views, labels = self._decoded.get(place, partial(self._decode, place))
        views, how = take_views(views, slots), self._pool.header.augmentation
        dtype = torch.uint8 if self._mean is None and how.mix != "mixup" else torch.float32
        images = apply_views(views, self._store, how, dtype=dtype, inside=True)[: len(slots)]
        if self._mean is not None and self._std is not None:
            images = normalise(images, self._mean, self._std, out=images)
        return PoolBatch(images, labels[slots], *view_facts(views, slots, self._classes))

    def _decode(self, place: int) -> tuple[int, ViewBatch, torch.Tensor]:
        item = LabelBatches(self._pool).prepare(Task(place, 0, None))
        labels = self._pool.codec.join(tuple(map(as_tensor, item.parts)))
        if self._temperature is not None:
            labels = softened(labels, self._pool.header.label_kind, self._temperature)
        return labels.nbytes, item.views, labels
