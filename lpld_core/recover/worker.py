"""Who makes groups of images: a worker with a teacher of its own, and one way or another to make a group."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from torch import Tensor

from lpld_core.images.real_images import RealFolder
from lpld_core.recover.folder import RecoveredFolder, to_pixels
from lpld_core.recover.losses import LayerTarget
from lpld_core.recover.optimise import layer_targets, recovery
from lpld_core.recover.plan import Group
from lpld_core.recover.rded import stitch_class
from lpld_core.recover.settings import RdedSettings, RecoverSettings
from lpld_core.recover.unfinished_group import UnfinishedGroup
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_core.teachers.machine import Machine
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_core.unfinished import workplace
from lpld_labels.errors import ComputationError
from lpld_labels.exec.job import Steps

log = logging.getLogger(__name__)

UNFINISHED_GROUP = "group.safetensors"


@dataclass(frozen=True, kw_only=True)
class LastLosses:
    """What a group's images ended with, averaged over its units."""

    cross_entropy: float
    batchnorm: float


Making = Generator[int, None, tuple[Tensor, LastLosses | None]]
"""A group on its way: yields the steps done, returns its pixels uint8 [B, H, W, 3] and last losses."""


class Method(Protocol):
    """A way to make a group of images. steps: how many one takes."""

    @property
    def steps(self) -> int: ...

    def make(self, teacher: LoadedTeacher, group: Group, place: Path) -> Making:
        """Make a group; what is on its way may be kept in `place`."""
        ...


@dataclass(kw_only=True, eq=False)
class Optimising:
    """Images optimised from noise (lpld, sre2l, cda), all with the same teacher."""

    settings: RecoverSettings
    statistics: ClassStatistics | None
    names: Sequence[str]
    _known_targets: tuple[LayerTarget, ...] = ()

    @property
    def steps(self) -> int:
        return self.settings.iterations

    def make(self, teacher: LoadedTeacher, group: Group, place: Path) -> Making:
        """Go on from what is kept in `place`, if anything is."""
        unfinished = UnfinishedGroup(place / UNFINISHED_GROUP, group)
        targets = self._targets(teacher)
        try:
            made = yield from recovery(teacher, group, targets, self.settings, unfinished=unfinished)
        except ComputationError as error:
            raise self._with_class_names(error, group) from None
        losses = LastLosses(cross_entropy=made.cross_entropy, batchnorm=made.batchnorm)
        return to_pixels(made.images, teacher.mean, teacher.std), losses

    def _targets(self, teacher: LoadedTeacher) -> tuple[LayerTarget, ...]:
        if not self._known_targets:
            kind = self.settings.statistics_kind
            self._known_targets = tuple(layer_targets(teacher, self.statistics, kind))
        return self._known_targets

    def _with_class_names(self, error: ComputationError, group: Group) -> ComputationError:
        """Say which class directories a failed group was for."""
        first, last = self.names[group.classes[0]], self.names[group.classes[-1]]
        where = f"group {group.index} ({first}{'' if first == last else f' to {last}'})"
        return ComputationError(error.problem, where=where, hint=error.hint)


@dataclass(frozen=True, kw_only=True, eq=False)
class Stitching:
    """Images stitched from crops of real ones (rded); a group is a class."""

    settings: RdedSettings
    real: RealFolder

    @cached_property
    def steps(self) -> int:
        return min(self.settings.candidates, int(self.real.counts().max()))

    def make(self, teacher: LoadedTeacher, group: Group, place: Path) -> Making:
        """Make a class's images; they are too soon done to be kept on their way."""
        del place
        (label,) = group.classes
        pixels = yield from stitch_class(teacher, self.real, label, self.settings)
        return pixels, None


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupWorker:
    """Makes groups and saves them in the folder."""

    teacher: LoadedTeacher
    folder: RecoveredFolder
    method: Method

    def do(self, task: Group, *, again: bool) -> Steps:
        """Make one group; the images counted while it is made are shares of the whole."""
        count, told = len(task.members), 0
        losses = None
        # A worker that was given up for lost may still be there for a moment.
        with workplace(self.folder.workplace(task), wait=again) as place:
            if not self.folder.has(task):
                making = self.method.make(self.teacher, task, place)
                while True:
                    try:
                        reached = count * next(making) // self.method.steps
                    except StopIteration as end:
                        pixels, losses = end.value
                        break
                    yield reached - told
                    told = reached
                self.folder.save(task, pixels)
        log.info("group %d: %d images saved", task.index, count)
        yield count - told
        return losses


def start_worker(
    teacher: LoadedTeacher, folder: RecoveredFolder, method: Method, machine: Machine, number: int
) -> GroupWorker:
    """Set a worker up in its own process."""
    return GroupWorker(teacher=machine.set_up(teacher, number), folder=folder, method=method)
