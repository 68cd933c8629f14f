"""What all loaders do first: open the pool, settle the schedule, the images and the normalisation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lpld_labels.codecs import label_semantics
from lpld_labels.io.addresses import is_address
from lpld_labels.io.disk_cache import CACHE_BYTES, DiskCache, cache_folder
from lpld_labels.loader.cursor import Schedule
from lpld_labels.loader.dataset import Renderer
from lpld_labels.loader.image_cache import open_images
from lpld_labels.loader.sampling import Sampling
from lpld_labels.loader.settings import ImageSettings, LabelSettings
from lpld_labels.loader.share import Cut, EqualCut, GlobalCut
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.image_source import ImageSource

Location = str | os.PathLike[str]
FETCHED = "fetched"
"""Folder of the cache directory for what comes from addresses."""


def open_reader(
    pool: PoolReader | Location,
    cache_directory: Location | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> PoolReader:
    """Return the pool, opened if it is a location; what is fetched from an address is kept on disk."""
    folder = cache_folder() if cache_directory is None else Path(cache_directory)
    cache = DiskCache(folder / FETCHED, cache_bytes)
    if not isinstance(pool, PoolReader):
        return PoolReader(pool, cache=cache if is_address(pool) else None)
    return pool.with_cache(cache)


def make_schedule(
    pool: PoolReader,
    settings: LabelSettings,
    *,
    batch_size: int | None = None,
    drop_last: bool = False,
    global_batch: bool = False,
) -> Schedule:
    """Return what is played, in batches of some rows or of one label batch each, per process or of all."""
    cut: Cut = EqualCut(batch=1 if batch_size is None else batch_size, drop_last=drop_last)
    if global_batch:
        cut = GlobalCut(batch=batch_size, drop_last=drop_last)
    return Schedule(
        sampling=Sampling.of(
            pool,
            settings.policy,
            seed=settings.seed,
            batches_per_epoch=settings.batches_per_epoch,
            equal_epochs=settings.equal_epochs,
        ),
        rows=pool.index.rows,
        cut=cut,
        whole_batches=batch_size is None and not global_batch,
    )


def open_renderer(
    pool: PoolReader, images: ImageSource, settings: ImageSettings, *, mixed: bool = True
) -> Renderer:
    """Open the images and set aside memory for as many label batches as can be under way."""
    augmentation = pool.header.augmentation
    return Renderer(
        store=open_images(
            images,
            num_workers=settings.num_workers,
            cache_directory=settings.cache_directory,
            memory_bytes=settings.memory_bytes,
        ),
        augmentation=augmentation,
        buffers=Renderer.allocate(
            augmentation,
            pool.header.batch_size,
            count=settings.label_batches_under_way,
            mixed=mixed,
            shared=settings.num_workers > 0,
        ),
        mixed=mixed,
    )


def find_normalisation(
    pool: PoolReader, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std as given, else those that all teachers of the pool share."""
    return label_semantics.find_normalisation(pool.header, mean, std, where=pool.location)
