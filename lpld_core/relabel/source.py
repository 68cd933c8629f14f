"""A teacher as the source of a pool's batches: draw views, render, label, encode."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpld_core.images import map_ahead, rendered
from lpld_core.settings import BuildSettings
from lpld_core.teachers.ensemble import Ensemble, load_ensemble
from lpld_core.teachers.teacher import Machine
from lpld_labels.codecs import Codec
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.format.records import BatchKey, LabelBatch, ViewBatch, check_labels
from lpld_labels.format.views import labelled as with_labels
from lpld_labels.interop.image_ids import SampledOrders
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.render import ImageStore, draw_views
from lpld_labels.render.images import FolderImages, class_names


@dataclass(frozen=True, kw_only=True)
class TeacherLabels:
    """A teacher as the source of a pool's batches; items are keys.

    ensemble: the teachers loaded in this process. Other processes of this machine load them again; other
    machines get them along (`sent`).
    """

    images: FolderImages
    settings: BuildSettings
    header: PoolHeader
    codec: Codec
    ensemble: Ensemble | None
    sent: bool = False
    home: int = field(default_factory=os.getpid)

    def begin(self, number: int) -> TeacherLabels:
        """Return the source for a worker, with its teachers on its device."""
        if self.ensemble is not None and self.home == os.getpid():
            return self
        settings = replace(self.settings, device=Machine(device=self.settings.device).device_of(number))
        if self.ensemble is None or not self.sent:
            ensemble = load_teachers(self.images.root, settings)
        else:
            _set_threads(settings)
            ensemble = self.ensemble.on(settings.device)
        return replace(self, ensemble=ensemble, home=os.getpid())

    def __call__(self, keys: Sequence[BatchKey]) -> Generator[EncodedBatch, None, None]:
        """Yield batches; views are rendered ahead, and labels encoded behind, in threads."""
        ensemble, codec = self.ensemble, self.codec
        if ensemble is None:
            raise RuntimeError("begin() loads the teachers")

        def encoded(said: tuple[ViewBatch, torch.Tensor]) -> EncodedBatch:
            batch = labelled(*said, codec)
            return EncodedBatch.make(batch, codec.encode(batch.labels))

        augmentation, workers = self.header.augmentation, self.settings.workers
        with closing(rendered(keys, self.draw, self._store, augmentation, workers=workers)) as shown:
            said = ((views, ensemble.logits(pixels)) for views, pixels in shown)
            with closing(map_ahead(encoded, said)) as batches:
                yield from batches

    def draw(self, key: BatchKey) -> ViewBatch:
        """Draw the views of a batch; not thread-safe."""
        return draw_views(
            self.header.augmentation,
            self.images.table,
            seed=self.settings.seed,
            epoch=key.epoch,
            batch=key.batch,
            batch_size=self.settings.batch_size,
            order=None if self._orders is None else self._orders[key.epoch],
        )

    @cached_property
    def _orders(self) -> SampledOrders | None:
        """The image order of each epoch where another program's is followed."""
        return None if self.settings.replayable_by is None else SampledOrders(len(self.images.table))

    @cached_property
    def _store(self) -> ImageStore:
        return ImageStore(self.images, cache_directory=self.settings.image_cache)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        ensemble = self.ensemble.on("cpu") if self.sent and self.ensemble is not None else None
        return {**state, "ensemble": ensemble, "home": 0}


def labelled(views: ViewBatch, logits: torch.Tensor, codec: Codec) -> LabelBatch:
    """Attach labels, rounded to float16 unless the codec keeps all 32 bits."""
    labels = logits.half() if np.dtype(codec.label_dtype) == np.float16 else logits
    values = labels.numpy()
    check_labels(values, views.key, views.images)
    return with_labels(views, values)


def load_teachers(images: Path, settings: BuildSettings) -> Ensemble:
    """Load the teachers for a folder's classes; set torch's threads."""
    _set_threads(settings)
    classes = None if settings.fewer_classes else len(class_names(images))
    return load_ensemble(settings.teachers, classes=classes, device=settings.device, amp=settings.amp)


def _set_threads(settings: BuildSettings) -> None:
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
