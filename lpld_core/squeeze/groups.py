"""Exact moments, class group by class group: the tasks of a squeeze, and the files that come of them.

All views of a class go through one task, in an order that follows from the seed, and are summed in float64.
So no sum is made of parts that several workers made, and the statistics are the same, bit for bit, whoever
did which group. Groups follow from the images and the batch size alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lpld_core.images import RealFolder
from lpld_core.networks.weights import read_weights, save_weights
from lpld_core.squeeze.moments import ExactMoments, Gatherer, GroupMoments
from lpld_core.squeeze.same_squeeze import IMAGE_DATES, is_same_squeeze, require_same_squeeze
from lpld_core.squeeze.settings import SqueezeSettings
from lpld_core.squeeze.shown import shown_batches
from lpld_core.squeeze.unfinished_moments import UnfinishedMoments
from lpld_core.teachers.teacher import LoadedTeacher, Machine
from lpld_labels.exec.job import Steps
from lpld_labels.io.storage import write_errors

GROUP_BATCHES = 16
"""A group has the views of at least so many batches: between two groups, nothing is decoded ahead."""


@dataclass(frozen=True, kw_only=True)
class ClassGroup:
    """The classes from `first` up to but not including `end`; views: of all of them, in all passes.

    dates: digest over the dates of their images. A group whose own images are as they were is gone on with,
    also if an image of another, at which a squeeze stopped, was mended since.
    """

    first: int
    end: int
    views: int
    dates: str

    def job(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return what decides this group's moments, of a squeeze's job."""
        return job | {IMAGE_DATES: self.dates}

    def name(self, folder: RealFolder) -> str:
        """Return what people call it."""
        first, last = folder.class_names[self.first], folder.class_names[self.end - 1]
        return f"class {first}" if first == last else f"classes {first} to {last}"

    def rows_among(self, rows: npt.NDArray[np.int64], folder: RealFolder) -> npt.NDArray[np.int64]:
        """Return those of the rows that are of these classes, in their order."""
        labels = folder.labels[rows]
        return rows[(labels >= self.first) & (labels < self.end)]

    def file(self, place: Path) -> Path:
        """Return where the group's moments are."""
        return place / f"classes-{self.first:06d}.safetensors"

    def unfinished(self, place: Path) -> Path:
        """Return where its moments are kept on their way."""
        return place / f"classes-{self.first:06d}.part.safetensors"


def class_groups(folder: RealFolder, settings: SqueezeSettings) -> list[ClassGroup]:
    """Cut the classes into groups of neighbours that are worth a task."""
    groups, first, views = [], 0, 0
    for label, count in enumerate(folder.counts().tolist(), 1):
        views += count * settings.passes
        if views >= GROUP_BATCHES * settings.batch_size or label == folder.classes:
            rows = np.flatnonzero((folder.labels >= first) & (folder.labels < label))
            dates = folder.listing(rows).dates_digest
            groups.append(ClassGroup(first=first, end=label, views=views, dates=dates))
            first, views = label, 0
    return groups


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupSqueezer:
    """A worker: gathers the moments of class groups and leaves them in `place`.

    job: what decides the statistics, as JSON values: a file of another job is not taken for one's own.
    """

    teacher: LoadedTeacher
    folder: RealFolder
    settings: SqueezeSettings
    place: Path
    job: dict[str, Any]

    def do(self, task: ClassGroup, *, again: bool) -> Steps:
        """Gather one group; what an earlier attempt has kept is gone on from."""
        del again
        if task.file(self.place).exists():
            yield task.views
            return
        gatherer = Gatherer(self.teacher)
        moments = ExactMoments(task.end - task.first, gatherer.rows.shift)
        job = task.job(self.job)
        kept = UnfinishedMoments(task.unfinished(self.place), job)
        reached = kept.restore(moments)
        yield int(moments.counts.sum())
        shown = shown_batches(
            self.teacher,
            self.folder,
            self.settings,
            done=kept.batches,
            choose=lambda rows: task.rows_among(rows, self.folder),
        )
        batches = ((images, labels - task.first) for images, labels in shown)
        for count in gatherer.gather(batches, moments):
            reached |= gatherer.rows.reached
            kept.passed_batch(moments, reached)
            yield count
        mean, variance = moments.result()
        tensors = {"mean": mean, "variance": variance, "counts": moments.counts}
        about = {"job": job, "reached": sorted(reached)}
        save_weights(task.file(self.place), tensors, about, within=self.place)
        task.unfinished(self.place).unlink(missing_ok=True)


def is_gathered(group: ClassGroup, place: Path, job: dict[str, Any]) -> bool:
    """Whether a group's moments are there; those of another squeeze are refused."""
    if not group.file(place).exists():
        return False
    require_same_squeeze(read_weights(group.file(place)).about["job"], group.job(job), where=place)
    return True


def forget_others(place: Path, job: dict[str, Any], groups: Sequence[ClassGroup]) -> None:
    """Delete what other squeezes have left unfinished."""
    own = {path: group.job(job) for group in groups for path in (group.file(place), group.unfinished(place))}
    with write_errors(place):
        for path in sorted(place.glob("*.safetensors")):
            if not is_same_squeeze(read_weights(path).about["job"], own.get(path, job)):
                path.unlink()


def gathered(groups: Sequence[ClassGroup], place: Path) -> GroupMoments:
    """Put the moments of all groups together, in class order."""
    files = [read_weights(group.file(place)) for group in groups]
    mean, variance, counts = (
        torch.cat([file.tensors[name] for file in files]) for name in ("mean", "variance", "counts")
    )
    reached = frozenset(number for file in files for number in file.about["reached"])
    return GroupMoments(mean=mean, variance=variance, counts=counts, reached=reached)


def start_squeezer(
    teacher: LoadedTeacher,
    folder: RealFolder,
    settings: SqueezeSettings,
    place: Path,
    job: dict[str, Any],
    machine: Machine,
    number: int,
) -> GroupSqueezer:
    """Set a worker up in its own process."""
    teacher = machine.set_up(teacher, number)
    return GroupSqueezer(teacher=teacher, folder=folder, settings=settings, place=place, job=job)
