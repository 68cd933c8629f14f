"""Squeezing an image folder: class statistics of its images, and the paper's bound for them."""

from __future__ import annotations

import contextlib
import json
import tempfile
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from lpld_core.images import RealFolder
from lpld_core.squeeze.groups import (
    GroupSqueezer,
    class_groups,
    forget_others,
    gathered,
    is_gathered,
    start_squeezer,
)
from lpld_core.squeeze.same_squeeze import IMAGE_DATES, is_same_squeeze, refuse_changed_images
from lpld_core.squeeze.settings import SqueezeSettings
from lpld_core.squeeze.shown import shown_batches
from lpld_core.squeeze.statistics import (
    ClassStatistics,
    collect_statistics,
    exact_statistics,
    require_same_classes,
)
from lpld_core.squeeze.unfinished_moments import UnfinishedMoments
from lpld_core.squeeze.update_bound import UpdateBound, update_bound
from lpld_core.teachers.teacher import LoadedTeacher, Machine
from lpld_labels.errors import InvalidArgumentError, LabelPoolError
from lpld_labels.exec.job import Engine, Job, Progress
from lpld_labels.exec.local import ONE_PROCESS

MOMENTS = "moments.safetensors"
"""What a moving average has gathered, among unfinished work."""


def squeeze_folder(
    teacher: LoadedTeacher,
    folder: RealFolder,
    settings: SqueezeSettings | None = None,
    *,
    place: Path | None = None,
    overwrite: bool = False,
    engine: Engine = ONE_PROCESS,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> ClassStatistics:
    """Return the class statistics of all images; order and views follow from the seed alone.

    place: directory for what is gathered on the way; what is found there is gone on from, and refused if it
    is another squeeze's, or with `overwrite` deleted.
    engine: who gathers; the statistics are the same. A moving average depends on the order of all batches,
    so it is one task. machine: what workers compute with, if not this process alone.
    progress: called with (views done, views in all) after each batch.
    """
    settings = settings or SqueezeSettings()
    job = squeeze_job(teacher, folder, settings)
    with contextlib.ExitStack() as stack:
        if place is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if overwrite:
            groups = class_groups(folder, settings) if settings.update == "exact" else []
            forget_others(place, job, groups)
        gather = _exact if settings.update == "exact" else _moving_average
        statistics = gather(teacher, folder, settings, place, job, engine, machine or Machine(), progress)
    return replace(statistics, views=settings.views, passes=settings.passes, job=job)


def _exact(
    teacher: LoadedTeacher,
    folder: RealFolder,
    settings: SqueezeSettings,
    place: Path,
    job: dict[str, Any],
    engine: Engine,
    machine: Machine,
    progress: Progress | None,
) -> ClassStatistics:
    require_same_classes(teacher, folder.class_names)
    groups = class_groups(folder, settings)
    missing = [group for group in groups if not is_gathered(group, place, job)]
    total = sum(group.views for group in groups)
    work = Job(
        start=partial(start_squeezer, teacher.on("cpu"), folder, settings, place, job, machine),
        here=lambda: GroupSqueezer(teacher=teacher, folder=folder, settings=settings, place=place, job=job),
        tasks=missing,
        name=lambda group: group.name(folder),
        total=total,
        done=total - sum(group.views for group in missing),
        where=place,
    )
    engine.run(work, progress)
    return exact_statistics(teacher, gathered(groups, place), class_names=folder.class_names)


def _moving_average(
    teacher: LoadedTeacher,
    folder: RealFolder,
    settings: SqueezeSettings,
    place: Path,
    job: dict[str, Any],
    engine: Engine,
    machine: Machine,
    progress: Progress | None,
) -> ClassStatistics:
    del machine
    if engine.workers > 1 or not engine.on_this_machine:
        raise InvalidArgumentError(
            "a moving average depends on the order of all batches, so it cannot be shared out",
            hint="use --update exact, or one process of this machine",
        )
    kept = UnfinishedMoments(place / MOMENTS, job)
    views = len(folder) * settings.passes
    return collect_statistics(
        teacher,
        shown_batches(teacher, folder, settings, done=kept.batches),
        class_names=folder.class_names,
        update=settings.update,
        momentum=settings.momentum,
        progress=None if progress is None else lambda done: progress(done, views),
        unfinished=kept,
    )


def squeeze_job(teacher: LoadedTeacher, folder: RealFolder, settings: SqueezeSettings) -> dict[str, Any]:
    """Return what decides the statistics, as JSON values; images count by path, size and date."""
    images = folder.listing()
    job: dict[str, Any] = json.loads(
        json.dumps(
            {
                **asdict(settings),
                "teacher": asdict(teacher.description),
                "size": teacher.input_size,
                "images": images.digest,
                IMAGE_DATES: images.dates_digest,
            }
        )
    )
    return job


def finished_squeeze(
    path: Path,
    teacher: LoadedTeacher,
    folder: RealFolder,
    settings: SqueezeSettings,
    *,
    overwrite: bool = False,
) -> ClassStatistics | None:
    """Return the statistics of a file if they are what this very squeeze makes, else None.

    Images that may have changed since are told, unless the file is to be replaced anyway.
    """
    if not path.is_file():
        return None
    try:
        found = ClassStatistics.load(path)
    except LabelPoolError:
        return None
    if found.job is None:
        return None
    job = squeeze_job(teacher, folder, settings)
    if is_same_squeeze(found.job, job):
        return found
    if not overwrite:
        refuse_changed_images(
            found.job,
            job,
            since="these statistics were taken",
            where=path,
            otherwise="use the file as it is if they are the same",
        )
    return None


def folder_bound(folder: RealFolder, settings: SqueezeSettings) -> UpdateBound:
    """Return how many batches a moving average needs on this folder, and how many one pass has."""
    return update_bound(
        smallest_class=int(folder.counts().min()),
        images=len(folder),
        batch_size=settings.batch_size,
        momentum=settings.momentum,
    )
