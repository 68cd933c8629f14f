"""A build as a job: tasks are ranges of batches, and any engine labels them; then one commit publishes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from lpld_core.relabel.build import Build, BuildResult, load_teachers
from lpld_core.relabel.labeller import Labeller
from lpld_core.relabel.settings import BuildSettings
from lpld_core.teachers.ensemble import Ensemble
from lpld_core.teachers.teacher import Machine
from lpld_labels.errors import ImageMismatchError, PoolConflictError
from lpld_labels.exec.job import Engine, Job, Progress
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import BatchKey
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.staged_writer import StagedWriter, missing_keys
from lpld_labels.transforms.engine import batches_named, batches_per_shard
from lpld_labels.transforms.outputs import delete_pool


def build_pool(
    images: Path,
    pool: Path,
    settings: BuildSettings,
    *,
    ensemble: Ensemble | None = None,
    table: ImageTable | None = None,
    progress: Progress | None = None,
) -> BuildResult:
    """Label an image folder in this process and publish the pool.

    ensemble, table: the teachers and the folder's images, where they are loaded and read already.
    What is labelled already, published or not, is kept; interrupting keeps all finished batches for the
    next run. A part of a build is not published: a call without `part` does so when all parts are done.
    """
    build = Build.prepare(images, pool, settings, ensemble=ensemble, table=table)
    return run_build(build, progress=progress)


def run_build(
    build: Build,
    engine: Engine = ONE_PROCESS,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BuildResult:
    """Label what is missing with an engine, and publish unless this is a part.

    overwrite: where another pool is at this place, or unfinished work for one, delete it first.
    If a task fails, the other workers finish the batch in hand and seal their work before its error is
    raised; the same holds for Ctrl-C.
    """
    with contextlib.ExitStack() as stack:
        try:
            published, writer = _opened(build, stack)
        except (PoolConflictError, ImageMismatchError):
            # What is told later, when batches are labelled and published, is no reason to delete them.
            if not overwrite:
                raise
            stack.pop_all().close()
            delete_pool(build.pool)
            published, writer = _opened(build, stack)
        share = build.share_of(writer)
        missing = missing_keys(writer, share)
        receipts = engine.run(_job(build, share, missing, writer, engine), progress)
        # Opened again, it knows what others have sealed.
        last = writer if all(key in writer for key in missing) else build.writer(published)
        last.believe(receipts)
        manifest = None if build.settings.part else build.commit(last, published)
    return BuildResult(labelled=len(missing), found=len(share) - len(missing), manifest=manifest)


def _opened(build: Build, stack: contextlib.ExitStack) -> tuple[PoolReader | None, StagedWriter]:
    """Open what is at the pool's place, and a writer onto it, until the stack is closed."""
    published = stack.enter_context(build.published())
    return published, stack.enter_context(build.writer(published))


def _job(
    build: Build, share: Sequence[BatchKey], missing: Sequence[BatchKey], writer: StagedWriter, engine: Engine
) -> Job[Sequence[BatchKey]]:
    size = max(1, len(missing))
    if engine.workers > 1:
        size = engine.task_size(len(missing), largest=batches_per_shard(writer.header))
    # Workers of other machines get the weights, once; those of this one read the files they came from.
    ensemble = None if engine.on_this_machine and build.settings.teachers else build.ensemble.on("cpu")
    return Job(
        start=partial(_started, build.images, build.pool, build.settings, build.table, ensemble),
        here=lambda: Labeller(build, writer),
        tasks=(missing[first : first + size] for first in range(0, len(missing), size)),
        name=lambda task: batches_named(task[0], task[-1]),
        total=len(share),
        done=len(share) - len(missing),
        where=build.pool,
    )


def _started(
    images: Path,
    pool: Path,
    settings: BuildSettings,
    table: ImageTable,
    ensemble: Ensemble | None,
    number: int,
) -> Labeller:
    """Load the teachers, or move those that came along to their device."""
    settings = replace(settings, device=Machine(device=settings.device).device_of(number))
    if ensemble is None:
        ensemble = load_teachers(images, settings)
    else:
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        ensemble = ensemble.on(settings.device)
    return Labeller(Build(images=images, pool=pool, settings=settings, ensemble=ensemble, table=table))
