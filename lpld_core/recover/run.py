"""Recover all groups of an image folder: resumable, divisible, with a contact sheet at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from lpld_core.images import RealFolder
from lpld_core.recover.folder import REAL_DIGEST, RecoveredFolder, contact_sheet, evenly, png_bytes, to_pixels
from lpld_core.recover.losses import LayerTarget
from lpld_core.recover.optimise import layer_targets, recovery
from lpld_core.recover.rded import candidates, stitch_class
from lpld_core.recover.settings import Group, RdedSettings, RecoverSettings, Settings
from lpld_core.settings import Part
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_core.teachers.teacher import LoadedTeacher, Machine
from lpld_core.unfinished import Checkpoint, workplace
from lpld_labels.errors import ComputationError, InvalidArgumentError
from lpld_labels.exec.job import Engine, Job, Progress, Steps
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.version import __version__

_SHEET_CLASSES = 10
_SHEET_IMAGES = 10
_UNSAID = {"roll_direction": "both", "scoring": "whole"}
"""Settings that came later, and what older versions did: a record says them only where they differ."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What a call did: groups and images made now, groups found finished, and whether all is there.

    cross_entropy, batchnorm: mean last losses of the groups made now; None where there are none.
    """

    made_groups: int
    kept_groups: int
    images: int
    seconds: float
    complete: bool
    contact_sheet: Path | None
    cross_entropy: float | None = None
    batchnorm: float | None = None


def recover_images(
    teacher: LoadedTeacher,
    out: str | Path,
    *,
    settings: RecoverSettings,
    statistics: ClassStatistics | None = None,
    class_names: Sequence[str] | None = None,
    part: Part | None = None,
    overwrite: bool = False,
    engine: Engine = ONE_PROCESS,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> RunSummary:
    """Optimise images from noise (lpld, sre2l, cda) and save them as an image folder.

    statistics: needed where settings ask for class statistics. class_names: directory names; those of
    the statistics or, without any, class numbers. Groups whose images are there already are passed over.
    overwrite: delete the images of another run that are there. engine: who makes them; machine: what its
    workers compute with, if not this process alone.
    """
    if statistics is not None:
        statistics.check_teacher(teacher)
    layer_targets(teacher, statistics, settings.statistics_kind)  # refuses what cannot be matched
    names = class_names or (statistics.class_names if statistics else default_names(teacher.classes))
    folder = _folder(out, names, settings, teacher)
    used = statistics if settings.statistics_kind == "class" else None
    folder.prepare(_record(settings, teacher, folder, used), overwrite=overwrite)
    method = Optimising(settings=settings, statistics=statistics, names=names)
    return _fill(teacher, folder, settings, method, part, engine, machine, progress)


def stitch_images(
    teacher: LoadedTeacher,
    out: str | Path,
    *,
    settings: RdedSettings,
    real: RealFolder,
    part: Part | None = None,
    overwrite: bool = False,
    engine: Engine = ONE_PROCESS,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> RunSummary:
    """Stitch images from crops of real ones (rded) and save them as an image folder.

    A folder begun with other real images is refused, or with `overwrite` emptied first.
    """
    folder = _folder(out, real.class_names, settings, teacher)
    for label in range(real.classes):
        candidates(real, label, settings)  # refuses a class with too few
    record = _record(settings, teacher, folder, None) | {REAL_DIGEST: real.identity_digest()}
    folder.prepare(record, overwrite=overwrite)
    method = Stitching(settings=settings, real=real)
    return _fill(teacher, folder, settings, method, part, engine, machine, progress)


def default_names(classes: int) -> tuple[str, ...]:
    """Return class numbers as directory names, padded so that their order is the classes' order."""
    width = max(4, len(str(classes - 1)))
    return tuple(f"{label:0{width}d}" for label in range(classes))


def _folder(
    out: str | Path, names: Sequence[str], settings: Settings, teacher: LoadedTeacher
) -> RecoveredFolder:
    if len(names) != teacher.classes:
        raise InvalidArgumentError(
            "teacher and class names differ in their number of classes",
            expected=f"{teacher.classes} (the teacher's)",
            got=len(names),
            hint="use a teacher trained on these classes",
        )
    return RecoveredFolder(out, class_names=names, files=settings.files)


def _fill(
    teacher: LoadedTeacher,
    folder: RecoveredFolder,
    settings: Settings,
    method: Method,
    part: Part | None,
    engine: Engine,
    machine: Machine | None,
    progress: Progress | None,
) -> RunSummary:
    groups = settings.groups(len(folder.class_names))
    mine = (part or Part()).share(groups)
    missing = [group for group in mine if not folder.has(group)]
    images = sum(len(group.members) for group in missing)
    start = time.monotonic()
    job = Job(
        start=partial(start_worker, teacher.on("cpu"), folder, method, machine or Machine()),
        here=lambda: GroupWorker(teacher=teacher, folder=folder, method=method),
        tasks=missing,
        name=lambda group: _group_name(folder, group),
        total=images,
        done=0,
        where=folder.root,
    )
    losses: list[LastLosses] = engine.run(job, progress)
    complete = all(folder.has(group) for group in groups)
    return RunSummary(
        made_groups=len(missing),
        kept_groups=len(mine) - len(missing),
        images=images,
        seconds=time.monotonic() - start,
        complete=complete,
        contact_sheet=_finish(folder, settings.ipc) if complete else None,
        cross_entropy=_mean([entry.cross_entropy for entry in losses]),
        batchnorm=_mean([entry.batchnorm for entry in losses]),
    )


def _group_name(folder: RecoveredFolder, group: Group) -> str:
    first, last = (folder.class_names[label] for label in (group.classes[0], group.classes[-1]))
    return f"group {group.index} ({first if first == last else f'{first} to {last}'})"


def _finish(folder: RecoveredFolder, ipc: int) -> Path:
    sheet = contact_sheet(
        folder.path,
        classes=evenly(len(folder.class_names), _SHEET_CLASSES),
        images=evenly(ipc, _SHEET_IMAGES),
        names=folder.class_names,
    )
    return folder.finish(png_bytes(sheet))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _record(
    settings: Settings,
    teacher: LoadedTeacher,
    folder: RecoveredFolder,
    statistics: ClassStatistics | None,
) -> dict[str, Any]:
    """Return what recover.json says: enough to make the same images again."""
    said = asdict(settings)
    files = said.pop("files")
    # Folders of older versions lack what these did not know; left out alike, such a run can be resumed.
    said = {name: value for name, value in said.items() if _UNSAID.get(name) != value}
    return {
        **said,
        "method": settings.method,
        "teacher": asdict(teacher.description),
        "statistics_digest": None if statistics is None else statistics.digest(),
        "class_names": list(folder.class_names),
        "image_files": files,
        "created_by": f"lpld-labels {__version__}",
    }


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
        checkpoint = Checkpoint(place / UNFINISHED_GROUP)
        targets = self._targets(teacher)
        try:
            made = yield from recovery(teacher, group, targets, self.settings, checkpoint=checkpoint)
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
