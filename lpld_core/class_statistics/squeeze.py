"""Squeezing an image folder: class statistics of its images, and the paper's bound for them."""

from __future__ import annotations

from collections.abc import Callable

from lpld_core.class_statistics.statistics import ClassStatistics, collect_statistics
from lpld_core.class_statistics.update_bound import UpdateBound, update_bound
from lpld_core.images.real_images import RealFolder, centre_batches, shuffled_rows
from lpld_core.teachers.teacher import LoadedTeacher

BATCH = 256
MOMENTUM = 0.1


def squeeze_folder(
    teacher: LoadedTeacher,
    folder: RealFolder,
    *,
    update: str = "exact",
    momentum: float = MOMENTUM,
    batch_size: int = BATCH,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> ClassStatistics:
    """Return the class statistics of all images, looked at once in an order that follows from the seed.

    progress: called with (images done, images in all) after each batch.
    """
    batches = centre_batches(
        folder,
        shuffled_rows(folder, seed),
        size=teacher.input_size,
        mean=teacher.mean,
        std=teacher.std,
        batch_size=batch_size,
    )

    def report(done: int) -> None:
        if progress is not None:
            progress(done, len(folder))

    return collect_statistics(
        teacher,
        batches,
        class_names=folder.class_names,
        update=update,
        momentum=momentum,
        progress=report,
    )


def folder_bound(folder: RealFolder, *, momentum: float = MOMENTUM, batch_size: int = BATCH) -> UpdateBound:
    """Return how many batches a moving average needs on this folder, and how many one pass has."""
    return update_bound(
        smallest_class=int(folder.counts().min()),
        images=len(folder),
        batch_size=batch_size,
        momentum=momentum,
    )
