"""Who labels: a worker with teachers, images and a writer of its own, which it keeps from task to task."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from lpld_core.prefetch import WorkBehind, rendered
from lpld_core.relabel.rehearsal import labelled
from lpld_labels.exec.job import Steps
from lpld_labels.format.records import BatchKey
from lpld_labels.pool.staged_writer import StagedWriter, missing_keys
from lpld_labels.render import ImageStore

if TYPE_CHECKING:
    from lpld_core.relabel.build import Build


class Labeller:
    """Labels batches of a build. writer: of the caller; without it, one is opened."""

    def __init__(self, build: Build, writer: StagedWriter | None = None) -> None:
        self._build = build
        self._writer = build.opened_writer() if writer is None else writer
        self._store = ImageStore(build.source, cache_directory=build.settings.image_cache)

    def do(self, task: Sequence[BatchKey], *, again: bool) -> Steps:
        """Draw and render ahead, label, write behind; what is finished is sealed at the end.

        Returns receipts for it.
        """
        build = self._build
        if again:
            self._writer = build.opened_writer()
        missing = missing_keys(self._writer, task)
        yield len(task) - len(missing)
        pixels_of = rendered(
            missing, build.draw, self._store, build.augmentation, workers=build.settings.workers
        )
        with self._writer as writer, WorkBehind(writer.append) as write, closing(pixels_of) as batches:
            for views, pixels in batches:
                write.put(labelled(views, build.ensemble.logits(pixels), build.codec))
                yield 1
        return self._writer.receipts()
