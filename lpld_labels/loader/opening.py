"""What all loaders do first: open the pool, settle the schedule, the images and the normalisation."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch.distributed

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader.cursor import Schedule
from lpld_labels.loader.dataset import Renderer
from lpld_labels.loader.image_cache import open_images
from lpld_labels.loader.sampling import Sampling
from lpld_labels.loader.streaming import slots_needed
from lpld_labels.pool.reader import PoolReader

Location = str | os.PathLike[str]


def open_reader(pool: PoolReader | Location) -> PoolReader:
    """Return the pool, opened if it is a location."""
    return pool if isinstance(pool, PoolReader) else PoolReader(pool)


def make_schedule(
    pool: PoolReader,
    *,
    policy: str,
    seed: int,
    batches_per_epoch: int | None,
    rank: int | None,
    world_size: int | None,
    whole_batches: bool,
) -> Schedule:
    """Return what this process plays, counted in rows or in whole label batches."""
    own_rank, world = _process(rank, world_size)
    return Schedule(
        sampling=Sampling.of(pool, policy, seed=seed, batches_per_epoch=batches_per_epoch),
        sizes=np.ones(len(pool), np.int64) if whole_batches else pool.index.rows,
        unit="label batches" if whole_batches else "rows",
        rank=own_rank,
        world=world,
    )


def _process(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return (rank, number of processes): as given, else torch.distributed's, else a run of one."""
    if (rank is None) != (world_size is None):
        raise InvalidArgumentError("give rank and world_size together", got=f"{rank} and {world_size}")
    if rank is not None and world_size is not None:
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def open_renderer(
    pool: PoolReader,
    images_dir: Location,
    *,
    num_workers: int,
    prefetch_factor: int,
    cache_directory: Location | None,
    memory_bytes: int,
    mixed: bool = True,
) -> Renderer:
    """Open the images and set aside memory for as many label batches as can be under way."""
    slots = slots_needed(num_workers, prefetch_factor)
    augmentation = pool.header.augmentation
    return Renderer(
        store=open_images(
            images_dir,
            pool.images,
            num_workers=num_workers,
            cache_directory=cache_directory,
            memory_bytes=memory_bytes,
        ),
        augmentation=augmentation,
        slots=Renderer.slots_for(
            augmentation, pool.header.batch_size, count=slots, mixed=mixed, shared=num_workers > 0
        ),
        mixed=mixed,
    )


def find_normalisation(
    pool: PoolReader, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std as given, else those that all teachers of the pool share."""
    if mean is not None and std is not None:
        return tuple(mean), tuple(std)
    known = {(teacher.mean, teacher.std) for teacher in pool.header.teachers}
    found = known.pop() if len(known) == 1 else (None, None)
    if mean is not None or std is not None or found[0] is None or found[1] is None:
        raise InvalidArgumentError(
            "the normalisation is not known",
            where=pool.location,
            expected="mean and std of the teacher, or the same of all teachers",
            got=f"teachers {', '.join(teacher.name for teacher in pool.header.teachers) or 'unknown'}",
            hint="give both mean and std",
        )
    return found[0], found[1]
