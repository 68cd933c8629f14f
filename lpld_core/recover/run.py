"""Filling an image folder group by group: resumable, divisible, and looked at when whole."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lpld_core.class_statistics.statistics import ClassStatistics
from lpld_core.images.real_images import RealFolder
from lpld_core.part import Part
from lpld_core.recover.contact_sheet import contact_sheet, evenly, png_bytes
from lpld_core.recover.folder import RecoveredFolder, to_pixels
from lpld_core.recover.optimise import layer_targets, recover_group
from lpld_core.recover.plan import Group
from lpld_core.recover.rded import candidates, stitch_class
from lpld_core.recover.settings import RdedSettings, RecoverSettings, Settings
from lpld_core.recover.unfinished_group import UnfinishedGroup
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_core.unfinished import workplace
from lpld_labels.errors import ComputationError, InvalidArgumentError
from lpld_labels.version import __version__

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with (images done, images to make); an image in the middle of its steps is a part of one."""
GroupSteps = Callable[[int], None]
"""Called with the steps of the present group that are done."""
UNFINISHED_GROUP = "group.safetensors"
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
    progress: Progress | None = None,
) -> RunSummary:
    """Optimise images from noise (lpld, sre2l, cda) and save them as an image folder.

    statistics: needed where settings ask for class statistics. class_names: directory names; those of
    the statistics or, without any, class numbers. Groups whose images are there already are passed over.
    overwrite: delete the images of another run that are there.
    """
    if statistics is not None:
        statistics.check_teacher(teacher)
    targets = layer_targets(teacher, statistics, settings.statistics_kind)
    names = class_names or (statistics.class_names if statistics else default_names(teacher.classes))
    folder = _folder(out, names, settings, teacher)
    used = statistics if settings.statistics_kind == "class" else None
    folder.prepare(_record(settings, teacher, folder, used), overwrite=overwrite)
    losses: list[tuple[float, float]] = []

    def make(group: Group, place: Path, steps: GroupSteps) -> Tensor:
        unfinished = UnfinishedGroup(place / UNFINISHED_GROUP, group)
        try:
            made = recover_group(teacher, group, targets, settings, progress=steps, unfinished=unfinished)
        except ComputationError as error:
            raise _with_class_names(error, group, names) from None
        losses.append((made.cross_entropy, made.batchnorm))
        return to_pixels(made.images, teacher.mean, teacher.std)

    return _fill(folder, settings, settings.iterations, make, losses, part=part, progress=progress)


def stitch_images(
    teacher: LoadedTeacher,
    out: str | Path,
    *,
    settings: RdedSettings,
    real: RealFolder,
    part: Part | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> RunSummary:
    """Stitch images from crops of real ones (rded) and save them as an image folder."""
    folder = _folder(out, real.class_names, settings, teacher)
    for label in range(real.classes):
        candidates(real, label, settings)  # refuses a class with too few
    folder.prepare(_record(settings, teacher, folder, None), overwrite=overwrite)

    def make(group: Group, place: Path, steps: GroupSteps) -> Tensor:
        del place
        (label,) = group.classes
        return stitch_class(teacher, real, label, settings, progress=lambda done, total: steps(done))

    steps = min(settings.candidates, int(real.counts().max()))
    return _fill(folder, settings, steps, make, [], part=part, progress=progress)


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
    folder: RecoveredFolder,
    settings: Settings,
    steps_per_group: int,
    make: Callable[[Group, Path, GroupSteps], Tensor],
    losses: list[tuple[float, float]],
    *,
    part: Part | None,
    progress: Progress | None,
) -> RunSummary:
    groups = settings.groups(len(folder.class_names))
    mine = (part or Part()).share(groups)
    missing = [group for group in mine if not folder.has(group)]
    images = sum(len(group.members) for group in missing)
    start = time.monotonic()
    before = 0
    for group in missing:

        def steps(done: int, before: int = before, count: int = len(group.members)) -> None:
            if progress is not None:
                progress(before + count * done // steps_per_group, images)

        with workplace(folder.workplace(group)) as place:
            folder.save(group, make(group, place, steps))
        before += len(group.members)
        log.info("group %d: %d images saved", group.index, len(group.members))
    complete = all(folder.has(group) for group in groups)
    return RunSummary(
        made_groups=len(missing),
        kept_groups=len(mine) - len(missing),
        images=images,
        seconds=time.monotonic() - start,
        complete=complete,
        contact_sheet=_finish(folder, settings.ipc) if complete else None,
        cross_entropy=_mean([entry[0] for entry in losses]),
        batchnorm=_mean([entry[1] for entry in losses]),
    )


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


def _with_class_names(error: ComputationError, group: Group, names: Sequence[str]) -> ComputationError:
    """Say which class directories a failed group was for."""
    first, last = names[group.classes[0]], names[group.classes[-1]]
    where = f"group {group.index} ({first}{'' if first == last else f' to {last}'})"
    return ComputationError(error.problem, where=where, hint=error.hint)
