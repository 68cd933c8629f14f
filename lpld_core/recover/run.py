"""Recover all groups of an image folder. Runs can be resumed, or split into parts."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from lpld_core.images import RealFolder
from lpld_core.recover.folder import RecoveredFolder, to_pixels
from lpld_core.recover.optimise import LayerTarget, layer_targets, recover_group
from lpld_core.recover.rded import candidates, stitch_class
from lpld_core.recover.settings import Group, RdedSettings, RecoverSettings
from lpld_core.settings import Part
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_core.teachers.ensemble import Ensemble
from lpld_core.teachers.teacher import LoadedTeacher, Machine
from lpld_core.unfinished import Checkpoint, workplace
from lpld_labels.errors import ComputationError, InvalidArgumentError
from lpld_labels.exec.job import Executor, Job, Progress, Steps, say_reused
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.probe import PROBE
from lpld_labels.results import Result
from lpld_labels.version import __version__

log = logging.getLogger(__name__)

LastLosses = tuple[float, float]
"""A group's last cross-entropy and BatchNorm distance, averaged over its units."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RunSummary(Result):
    """How many groups this run made, and how many it kept. The losses are means over the groups it made."""

    made_groups: int
    kept_groups: int
    images: int
    seconds: float
    complete: bool
    contact_sheet: Path | None
    cross_entropy: float | None = None
    batchnorm: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "made_images": self.images,
            "made_groups": self.made_groups,
            "kept_groups": self.kept_groups,
            "seconds": round(self.seconds, 3),
            "complete": self.complete,
            "contact_sheet": self.contact_sheet and str(self.contact_sheet),
            "cross_entropy": self.cross_entropy,
            "batchnorm_loss": self.batchnorm,
        }


def recover_images(
    teacher: LoadedTeacher,
    out: str | Path,
    *,
    settings: RecoverSettings | RdedSettings,
    statistics: ClassStatistics | None = None,
    real: RealFolder | None = None,
    part: Part | None = None,
    overwrite: bool = False,
    executor: Executor = ONE_PROCESS,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> RunSummary:
    """Make images and save them as an image folder; finished groups are skipped.

    statistics: required if the settings ask for class statistics. real: images for rded to crop. Class names
    come from `real` or else from `statistics`; without both, class directories are numbered.
    overwrite: delete the images of a different run. machine: device and threads of the executor's workers.
    """
    if isinstance(settings, RdedSettings):
        if real is None:
            raise InvalidArgumentError("rded needs real images")
        for label in range(real.classes):
            candidates(real, label, settings)  # refuses a class with too few images
    else:
        if statistics is not None:
            statistics.check_teacher(teacher)
        layer_targets(teacher, statistics, settings.statistics_kind)  # refuses unsuitable statistics
    width = max(4, len(str(teacher.classes - 1)))
    named = statistics if real is None else real
    names = named.class_names if named else tuple(f"{label:0{width}d}" for label in range(teacher.classes))
    teacher.require_classes(len(names), "class names")
    if isinstance(settings, RecoverSettings) and settings.statistics_kind == "global":
        statistics = None
    folder = RecoveredFolder(out, names, settings)
    folder.prepare(_record(settings, teacher, names, statistics, real), overwrite=overwrite)

    groups = settings.groups(teacher.classes)
    mine = (part or Part()).share(groups)
    missing = [group for group in mine if not folder.has(group)]
    images = sum(len(group.members) for group in missing)
    start = time.monotonic()
    worker = partial(GroupWorker, folder=folder, settings=settings, statistics=statistics, real=real)
    job = Job(
        start=partial((machine or Machine()).start, worker, teacher.on("cpu")),
        here=lambda: worker(teacher=teacher),
        tasks=missing,
        name=lambda group: _group_name(group, names),
        total=images,
        done=0,
        where=folder.root,
    )
    kept, begun = len(mine) - len(missing), sum(folder.workplace(group).exists() for group in missing)
    say_reused(folder.root, kept + begun, len(mine), "groups of images")
    losses: list[LastLosses] = executor.run(job, progress)
    complete = all(folder.has(group) for group in groups)
    return RunSummary(
        made_groups=len(missing),
        kept_groups=kept,
        images=images,
        seconds=time.monotonic() - start,
        complete=complete,
        contact_sheet=folder.finish(settings.ipc) if complete else None,
        cross_entropy=sum(entry[0] for entry in losses) / len(losses) if losses else None,
        batchnorm=sum(entry[1] for entry in losses) / len(losses) if losses else None,
    )


def _group_name(group: Group, names: Sequence[str]) -> str:
    first, last = names[group.classes[0]], names[group.classes[-1]]
    return f"group {group.index} ({first}{'' if first == last else f' to {last}'})"


def _record(
    settings: RecoverSettings | RdedSettings,
    teacher: LoadedTeacher,
    names: Sequence[str],
    statistics: ClassStatistics | None,
    real: RealFolder | None,
) -> dict[str, Any]:
    """Return the content of recover.json: everything that is needed to make the same images again."""
    record = {
        **asdict(settings),
        "teacher": asdict(teacher.description),
        PROBE: Ensemble([teacher]).probe(teacher.input_size),
        "statistics_digest": None if statistics is None else statistics.digest(),
        "class_names": list(names),
        "created_by": f"lpld-labels {__version__}",
    }
    if isinstance(settings, RdedSettings) and real is not None:
        record["real_images_digest"] = real.identity_digest()
    return record


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupWorker:
    """Makes groups of images and saves them in the folder."""

    teacher: LoadedTeacher
    folder: RecoveredFolder
    settings: RecoverSettings | RdedSettings
    statistics: ClassStatistics | None
    real: RealFolder | None

    def do(self, task: Group, *, again: bool) -> Steps:
        """Make a group's images; yield increments of progress that add up to the number of images."""
        count, counted = len(task.members), 0
        losses = None
        # A worker that was reported lost may still be running: wait for it.
        with workplace(self.folder.workplace(task), wait=again) as place:
            self.folder.require_own()
            if not self.folder.has(task):
                steps = self._make(task, place)
                while True:
                    try:
                        reached = count * next(steps) // self._steps
                    except StopIteration as end:
                        pixels, losses = end.value
                        break
                    yield reached - counted
                    counted = reached
                self.folder.save(task, pixels)
        log.info("group %d: %d images saved", task.index, count)
        yield count - counted
        return losses

    @cached_property
    def _steps(self) -> int:
        if isinstance(self.settings, RecoverSettings):
            return self.settings.iterations
        assert self.real is not None  # noqa: S101  # checked by recover_images
        return min(self.settings.candidates, int(self.real.counts().max()))

    @cached_property
    def _targets(self) -> Sequence[LayerTarget]:
        assert isinstance(self.settings, RecoverSettings)  # noqa: S101
        return layer_targets(self.teacher, self.statistics, self.settings.statistics_kind)

    def _make(self, group: Group, place: Path) -> Generator[int, None, tuple[Tensor, LastLosses | None]]:
        """Yield the number of steps done; return pixels uint8 [B, H, W, 3] and last losses (rded: None)."""
        if isinstance(self.settings, RdedSettings):
            assert self.real is not None  # noqa: S101
            return (yield from stitch_class(self.teacher, self.real, group.classes[0], self.settings)), None
        # Name the file after its images: a run with a different class_group may have left other checkpoints.
        name = hashlib.sha256(repr(group.units).encode()).hexdigest()[:16]
        checkpoint = Checkpoint(place / f"{name}.safetensors")
        try:
            made = yield from recover_group(
                self.teacher, group, self._targets, self.settings, checkpoint=checkpoint
            )
        except ComputationError as error:
            where = _group_name(group, self.folder.class_names)
            raise ComputationError(error.problem, where=where, hint=error.hint) from None
        pixels = to_pixels(made.images, self.teacher.mean, self.teacher.std)
        return pixels, (made.cross_entropy, made.batchnorm)
