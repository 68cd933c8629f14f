"""A teacher as the source of a pool's batches: draw views, render, label, encode.

The preflight of a build labels a few views in memory before anything is written, so invalid settings,
unusable codecs or weights and unreadable images fail at once. It also estimates the cost.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpld_core.device import read_behind
from lpld_core.images import rendered
from lpld_core.settings import BuildSettings
from lpld_core.teachers.ensemble import Ensemble, load_ensemble
from lpld_core.teachers.teacher import Machine
from lpld_labels.codecs import Codec
from lpld_labels.errors import ComputationError, PoolWriteError
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.format.records import BatchKey, LabelBatch, ViewBatch, check_labels
from lpld_labels.format.views import labelled as with_labels
from lpld_labels.interop.image_ids import SampledOrders
from lpld_labels.pool.shard import EncodedBatch, views_file_bytes
from lpld_labels.pool.sizes import SizeModel
from lpld_labels.render import ImageStore, apply_views, draw_views
from lpld_labels.render.images import FolderImages, class_names, map_ahead
from lpld_labels.transforms.prune import kept_count


@dataclass(frozen=True, kw_only=True)
class TeacherLabels:
    """Labels a pool's batches with teachers. sent: workers get the weights instead of reading files."""

    images: FolderImages
    settings: BuildSettings
    header: PoolHeader
    codec: Codec
    ensemble: Ensemble | None
    sent: bool = False
    home: int = field(default_factory=os.getpid)

    def begin(self, number: int) -> TeacherLabels:
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
        """Yield labelled, encoded batches; threads render the next views and encode the previous labels."""
        ensemble, codec = self.ensemble, self.codec
        if ensemble is None:
            raise RuntimeError("the teachers are not loaded: call begin() first")

        def encoded(answer: tuple[ViewBatch, torch.Tensor]) -> EncodedBatch:
            batch = labelled(*answer, codec)
            return EncodedBatch.make(batch, codec.encode(batch.labels))

        augmentation, workers = self.header.augmentation, self.settings.workers
        with closing(rendered(keys, self.draw, self._store, augmentation, workers=workers)) as shown:
            answers = read_behind((views, ensemble.outputs(pixels)) for views, pixels in shown)
            with closing(map_ahead(encoded, answers)) as batches:
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
        """The image orders of the program that `replayable_by` names; None if this setting is None."""
        return None if self.settings.replayable_by is None else SampledOrders(len(self.images.table))

    @cached_property
    def _store(self) -> ImageStore:
        return ImageStore(self.images, cache_directory=self.settings.image_cache)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        ensemble = self.ensemble.on("cpu") if self.sent and self.ensemble is not None else None
        return {**state, "ensemble": ensemble, "home": 0}


def labelled(views: ViewBatch, logits: torch.Tensor, codec: Codec) -> LabelBatch:
    """Attach logits to views as labels; round them to float16 unless the codec takes float32."""
    labels = logits.half() if np.dtype(codec.label_dtype) == np.float16 else logits
    values = labels.numpy()
    check_labels(values, views.key, views.images)
    return with_labels(views, values)


def load_teachers(images: Path, settings: BuildSettings) -> Ensemble:
    """Load the teachers, compare their classes with the folder, and set torch's number of threads."""
    _set_threads(settings)
    classes = None if settings.fewer_classes else len(class_names(images))
    return load_ensemble(settings.teachers, classes=classes, device=settings.device, amp=settings.amp)


def _set_threads(settings: BuildSettings) -> None:
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)


VIEW_BYTES = 13.0
"""Bytes that a stored view (crop, flip and mix) takes in a pool of the ImageNet-1K recipe."""
_CHECKED_ROWS, _TIMED_ROWS = 2, 16
_LEAST_SHARE = 0.5
"""Compression is assumed to leave at least this share of the trial's bytes."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Stored bytes and seconds per label, measured on `rows` views whose images were already decoded."""

    rows: int = 1
    row_bytes: float = 0.0
    row_seconds: float = 1e-3


def try_out(source: TeacherLabels, ensemble: Ensemble, rows: int = _TIMED_ROWS) -> Trial:
    """Label two views as a check, then `rows` views to measure time and size."""
    augmentation, table, codec = source.header.augmentation, source.images.table, source.codec
    store = ImageStore(source.images)
    trial = Trial()
    for most in (_CHECKED_ROWS, rows):
        count = min(most, source.settings.batch_size, len(table))
        views = draw_views(augmentation, table, seed=source.settings.seed, epoch=0, batch=0, batch_size=count)
        apply_views(views, store, augmentation, inside=True)  # decodes the images
        start = time.perf_counter()
        pixels = apply_views(views, store, augmentation, inside=True)
        batch = labelled(views, ensemble.logits(pixels), codec)
        encoded = EncodedBatch.make(batch, codec.encode(batch.labels))
        seconds = time.perf_counter() - start
        if not np.isfinite(batch.labels).all():
            raise ComputationError(
                "the teacher's labels are not finite",
                where=", ".join(teacher.name for teacher in ensemble.descriptions),
                hint="check the weights and the normalisation; labels above 65504 need --codec f32",
            )
        trial = Trial(rows=count, row_bytes=encoded.nbytes / count, row_seconds=seconds / count)
    return trial


def require_room(pool: Path, rows: int, bytes_per_row: float) -> None:
    """Refuse to build a pool of `rows` labels that cannot fit on the disk."""
    place = pool.absolute()
    while not place.exists():
        place = place.parent
    free, needed = shutil.disk_usage(place).free, int(_LEAST_SHARE * rows * bytes_per_row)
    if needed > free:
        raise PoolWriteError(
            "not enough disk space for the labels",
            where=os.fspath(pool),
            expected=f"at least {needed / 1e9:.3g} GB",
            got=f"{free / 1e9:.3g} GB free",
            hint="choose another disk, a smaller codec, fewer epochs or a larger --ratio",
        )


@dataclass(frozen=True, kw_only=True)
class LabelCost:
    """The cost of labelling a folder. forwards: number of views x teachers. final_bytes: pool size."""

    batches: int
    views: int
    forwards: int
    final_bytes: int


def label_cost(
    settings: BuildSettings,
    *,
    images: int,
    teachers: int = 1,
    labels_per_row: float,
    views_per_row: float = VIEW_BYTES,
) -> LabelCost:
    """Return the cost of a build. labels_per_row, views_per_row: stored bytes per row."""
    epochs, batch_size = settings.epochs, settings.batch_size
    if settings.ratio == 1:
        batches, views = epochs * math.ceil(images / batch_size), epochs * images
    else:
        batches = kept_count(epochs * max(1, images // batch_size), settings.ratio)
        views = batches * min(batch_size, images)
    size = SizeModel(
        fixed=6000 + 60 * images,
        per_shard=7000,
        views_per_row=0.0 if settings.views == "drawn" else views_per_row,
        labels_per_row=labels_per_row,
    )
    final_bytes = size.total(batches, views)
    return LabelCost(batches=batches, views=views, forwards=views * teachers, final_bytes=final_bytes)


def dry_run(source: TeacherLabels, ensemble: Ensemble, wanted: Sequence[BatchKey]) -> tuple[LabelCost, Trial]:
    """Estimate the cost of a build by labelling one batch in memory."""
    trial = try_out(source, ensemble, source.settings.batch_size)
    first, second = (source.draw(key) for key in (wanted[0], wanted[-1]))
    cost = label_cost(
        source.settings,
        images=len(source.images.table),
        teachers=len(ensemble.teachers),
        labels_per_row=trial.row_bytes,
        views_per_row=(views_file_bytes([first, second]) - views_file_bytes([first])) / second.rows,
    )
    return cost, trial
