"""Filling an image folder group by group: resumable, divisible, and looked at when whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lpld_core.images.real_images import RealFolder
from lpld_core.part import Part
from lpld_core.recover.contact_sheet import contact_sheet, evenly, png_bytes
from lpld_core.recover.folder import REAL_DIGEST, RecoveredFolder
from lpld_core.recover.optimise import layer_targets
from lpld_core.recover.plan import Group
from lpld_core.recover.rded import candidates
from lpld_core.recover.settings import RdedSettings, RecoverSettings, Settings
from lpld_core.recover.worker import GroupWorker, LastLosses, Method, Optimising, Stitching, start_worker
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_core.teachers.machine import Machine
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Engine, Job, Progress
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
