"""Squeezing an image folder: class statistics of its images, and the paper's bound for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lpld_core.class_statistics.settings import SqueezeSettings
from lpld_core.class_statistics.statistics import ClassStatistics, collect_statistics
from lpld_core.class_statistics.unfinished_moments import UnfinishedMoments
from lpld_core.class_statistics.update_bound import UpdateBound, update_bound
from lpld_core.images.centre import centre_view
from lpld_core.images.random_view import random_view
from lpld_core.images.real_images import Pixels, RealFolder, labelled_batches, shuffled_rows
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.errors import LabelPoolError
from lpld_labels.format.random_streams import Stream, keyed_generator


def squeeze_folder(
    teacher: LoadedTeacher,
    folder: RealFolder,
    settings: SqueezeSettings | None = None,
    *,
    unfinished: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ClassStatistics:
    """Return the class statistics of all images; order and views follow from the seed alone.

    unfinished: file for what is gathered on the way; what is found there is gone on from.
    progress: called with (views done, views in all) after each batch.
    """
    settings = settings or SqueezeSettings()
    job = squeeze_job(teacher, folder, settings)
    kept = None if unfinished is None else UnfinishedMoments(unfinished, job)

    def report(done: int) -> None:
        if progress is not None:
            progress(done, len(folder) * settings.passes)

    statistics = collect_statistics(
        teacher,
        _batches(teacher, folder, settings, 0 if kept is None else kept.batches),
        class_names=folder.class_names,
        update=settings.update,
        momentum=settings.momentum,
        progress=report,
        unfinished=kept,
    )
    return replace(statistics, views=settings.views, passes=settings.passes, job=job)


def squeeze_job(teacher: LoadedTeacher, folder: RealFolder, settings: SqueezeSettings) -> dict[str, Any]:
    """Return what decides the statistics, as JSON values; images count by path and size."""
    job: dict[str, Any] = json.loads(
        json.dumps(
            {
                **asdict(settings),
                "teacher": asdict(teacher.description),
                "size": teacher.input_size,
                "images": folder.listing_digest(),
            }
        )
    )
    return job


def finished_squeeze(
    path: Path, teacher: LoadedTeacher, folder: RealFolder, settings: SqueezeSettings
) -> ClassStatistics | None:
    """Return the statistics of a file if they are what this very squeeze makes, else None."""
    if not path.is_file():
        return None
    try:
        found = ClassStatistics.load(path)
    except LabelPoolError:
        return None
    return found if found.job == squeeze_job(teacher, folder, settings) else None


def _batches(
    teacher: LoadedTeacher, folder: RealFolder, settings: SqueezeSettings, done: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the normalised views float32 [B, 3, H, W] and labels int64 [B] of all passes but for `done`."""
    per_pass = -(-len(folder) // settings.batch_size)
    for number in range(done // per_pass, settings.passes):

        def show(row: int, image: Pixels, number: int = number) -> Tensor:
            if settings.views == "centre":
                return centre_view(image, teacher.input_size)
            # Keyed by pass and image: neither threads nor the order of the images change a view.
            draws = keyed_generator(settings.seed, Stream.SQUEEZE_VIEWS, number, row, 0)
            return random_view(image, teacher.input_size, draws)

        first = max(0, done - number * per_pass) * settings.batch_size
        yield from labelled_batches(
            folder,
            shuffled_rows(folder, settings.seed, number)[first:],
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
