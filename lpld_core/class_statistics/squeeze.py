"""Squeezing an image folder: class statistics of its images, and the paper's bound for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import Tensor

from lpld_core.class_statistics.settings import SqueezeSettings
from lpld_core.class_statistics.statistics import ClassStatistics, collect_statistics
from lpld_core.class_statistics.update_bound import UpdateBound, update_bound
from lpld_core.images.centre import centre_view
from lpld_core.images.random_view import random_view
from lpld_core.images.real_images import Pixels, RealFolder, labelled_batches, shuffled_rows
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.format.random_streams import Stream, keyed_generator


def squeeze_folder(
    teacher: LoadedTeacher,
    folder: RealFolder,
    settings: SqueezeSettings | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> ClassStatistics:
    """Return the class statistics of all images; order and views follow from the seed alone.

    progress: called with (views done, views in all) after each batch.
    """
    settings = settings or SqueezeSettings()

    def report(done: int) -> None:
        if progress is not None:
            progress(done, len(folder) * settings.passes)

    statistics = collect_statistics(
        teacher,
        _batches(teacher, folder, settings),
        class_names=folder.class_names,
        update=settings.update,
        momentum=settings.momentum,
        progress=report,
    )
    return replace(statistics, views=settings.views, passes=settings.passes)


def _batches(
    teacher: LoadedTeacher, folder: RealFolder, settings: SqueezeSettings
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the normalised views float32 [B, 3, H, W] and labels int64 [B] of all passes."""
    for number in range(settings.passes):

        def show(row: int, image: Pixels, number: int = number) -> Tensor:
            if settings.views == "centre":
                return centre_view(image, teacher.input_size)
            # Keyed by pass and image: neither threads nor the order of the images change a view.
            draws = keyed_generator(settings.seed, Stream.SQUEEZE_VIEWS, number, row, 0)
            return random_view(image, teacher.input_size, draws)

        yield from labelled_batches(
            folder,
            shuffled_rows(folder, settings.seed, number),
            show,
            mean=teacher.mean,
            std=teacher.std,
            batch_size=settings.batch_size,
        )


def folder_bound(folder: RealFolder, settings: SqueezeSettings) -> UpdateBound:
    """Return how many batches a moving average needs on this folder, and how many one pass has."""
    return update_bound(
        smallest_class=int(folder.counts().min()),
        images=len(folder),
        batch_size=settings.batch_size,
        momentum=settings.momentum,
    )
