"""The verbs that make images: squeeze and recover. Importing this module does not import torch."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lpld_core.options import NetworkOptions, TorchExecutorOptions, look_over
from lpld_core.recover.settings import Method, PresetName, RecoverChoices, method_settings
from lpld_core.settings import DEFAULT_WEIGHTS, RANDOM_WEIGHTS, Part, SqueezeSettings
from lpld_labels.errors import PoolConflictError, UsageError
from lpld_labels.io.addresses import Location
from lpld_labels.options import Writes
from lpld_labels.progress import Progress, progress_of
from lpld_labels.results import Result
from lpld_labels.settings import Setting, part_of, values_of, verb

if TYPE_CHECKING:
    from lpld_core.images import RealFolder
    from lpld_core.recover.run import RunSummary
    from lpld_core.squeeze.squeeze import UpdateBound

log = logging.getLogger(__name__)

_TEACHER_SIDE = 64


@dataclass(frozen=True)
class _SqueezeCall(Writes, TorchExecutorOptions, SqueezeSettings, NetworkOptions):
    data: Annotated[Location, Setting("An image folder, one directory per class.", option=False)]
    out: Annotated[Location, Setting("The statistics, a safetensors file.", option=False)]
    train_teacher: Annotated[
        bool, Setting("First train the teacher on DATA from scratch and save it as --teacher-weights.")
    ] = field(default=False, kw_only=True)
    epochs: Annotated[int | None, Setting("Number of epochs of the teacher.  [default: 30]", ge=1)] = field(
        default=None, kw_only=True
    )
    val: Annotated[
        Location | None, Setting("Image folder to measure the accuracy of a trained teacher on.")
    ] = field(default=None, kw_only=True)


@dataclass(frozen=True, kw_only=True, repr=False)
class Squeezed(Result):
    """Result of `squeeze`. bound: how many batches a moving average needs, by the paper's formula."""

    statistics: str
    views: str
    passes: int
    update: str
    classes: int
    images: int
    layers: int
    bytes: int
    model_bytes: int
    teacher_top1: float | None
    bound: UpdateBound


@verb(_SqueezeCall)
def squeeze(call: _SqueezeCall) -> Squeezed:
    """Compute per-class BatchNorm statistics of a teacher on DATA and save them as OUT.

    DATA is an image folder with one directory per class; OUT a safetensors file. Every pass covers all
    classes. A moving average needs several passes; the output states the paper's bound. Exact moments need
    one pass, and are bit-identical for any number of workers (at equal --threads).

    Run the same command again after a crash or Ctrl-C to resume. Classes whose images changed in path, size
    or date start over. An OUT with other settings or images is only replaced with --overwrite.
    """
    settings = part_of(SqueezeSettings, call)
    if call.train_teacher and call.weights in (DEFAULT_WEIGHTS, RANDOM_WEIGHTS):
        raise UsageError("--train-teacher requires --teacher-weights FILE, the file to write")
    if not call.train_teacher and (call.epochs is not None or call.val is not None):
        raise UsageError("--epochs and --val require --train-teacher")

    from lpld_core.images import RealFolder
    from lpld_core.networks.batchnorm import batchnorm_layers
    from lpld_core.squeeze.squeeze import finished_squeeze, folder_bound, squeeze_folder
    from lpld_core.unfinished import unfinished_beside, workplace
    from lpld_labels.transforms.outputs import require_apart

    out, data = Path(call.out), Path(call.data)
    require_apart(out, data, call.weights, *([] if call.val is None else [call.val]))
    machine, shown = call.prepare_machine(call), progress_of(call.progress)
    look_over(data)
    folder = RealFolder.open(data)
    with call.opened_for(call.device, machine.threads) as executor:
        accuracy = None
        if call.train_teacher:
            if not Path(call.weights).exists():
                _require_replaceable(out, call.overwrite)
            accuracy = _train_teacher(call, folder, shown)
        teacher = call.load(classes=folder.classes, device=None if executor.on_this_machine else "cpu")
        batchnorm_layers(teacher.model, name=f"teacher {call.teacher}")
        statistics = finished_squeeze(out, teacher, folder, settings)
        if statistics is not None:
            log.warning("%s already exists, from the same squeeze", out)
            if unfinished_beside(out).exists():
                # An earlier run wrote OUT, but stopped before it deleted its unfinished work.
                with workplace(unfinished_beside(out)):
                    pass
        else:
            _require_replaceable(out, call.overwrite)
            with workplace(unfinished_beside(out)) as place, shown.stage("squeezing images") as progress:
                statistics = squeeze_folder(
                    teacher,
                    folder,
                    settings,
                    place=place.absolute(),
                    executor=executor,
                    machine=machine,
                    progress=progress,
                )
                statistics.save(out, within=place)
    bound = folder_bound(folder, settings)
    if statistics.update == "ema" and statistics.passes < bound.required_passes:
        log.warning(
            "warning: the moving averages have not converged; use --update exact or --passes %d",
            bound.required_passes,
        )
    return Squeezed(
        statistics=str(out),
        views=statistics.views,
        passes=statistics.passes,
        update=statistics.update,
        classes=statistics.classes,
        images=int(statistics.counts.sum()),
        layers=len(statistics.layers),
        bytes=statistics.nbytes,
        model_bytes=sum(tensor.nbytes for tensor in teacher.model.state_dict().values()),
        teacher_top1=accuracy,
        bound=bound,
    )


def _require_replaceable(out: Path, overwrite: bool) -> None:
    """Refuse an existing file, unless it holds statistics and `overwrite` is true."""
    from lpld_core.squeeze.statistics import ClassStatistics
    from lpld_labels.transforms.outputs import OVERWRITE_HINT

    if out.exists():
        if not overwrite:
            raise PoolConflictError("a different file is already here", where=out, hint=OVERWRITE_HINT)
        ClassStatistics.load(out)


def _train_teacher(call: _SqueezeCall, folder: RealFolder, shown: Progress) -> float | None:
    """Train the teacher, save it, and return its top-1 accuracy on `call.val` (None without `call.val`)."""
    from lpld_core.train.evaluate import ValidationSet
    from lpld_core.train.train_teacher import (
        TEACHER_RECIPE,
        TeacherJob,
        check_network,
        train_teacher,
        trained_by,
    )

    weights, side = Path(call.weights), call.size or _TEACHER_SIDE
    if weights.exists() and trained_by(weights) is None:
        raise UsageError(f"{weights} already exists: leave out --train-teacher to use it")
    recipe = replace(
        TEACHER_RECIPE,
        epochs=call.epochs or TEACHER_RECIPE.epochs,
        mean=call.mean,
        std=call.std,
        seed=call.seed,
        device=call.device,
    )
    job = TeacherJob(out=weights, network=call.teacher, size=(side, side), recipe=recipe)
    check_network(job, folder.classes)
    validation = None
    if call.val is not None:
        look_over(call.val)
        validation = ValidationSet(Path(call.val), size=job.size)
        validation.require_classes(folder.classes, folder.class_names)
    with shown.stage("training the teacher") as progress:
        accuracy = train_teacher(folder.root, job, validation=validation, progress=progress)
    return None if accuracy is None else accuracy.top1


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """Method, preset and inputs of `recover`."""

    method: Annotated[Method, Setting("How images are made; see above.")] = "lpld"
    statistics: Annotated[Location | None, Setting("Class statistics from squeeze; required by lpld.")] = None
    real: Annotated[
        Location | None, Setting("Real images: rded crops them; other methods use only the class names.")
    ] = None
    preset: Annotated[
        PresetName | None,
        Setting(
            "Iterations, lr, alpha and roll of the paper's programs.  "
            "[default: tiny up to 64 px, imagenet1k above]"
        ),
    ] = None


@dataclass(frozen=True)
class _RecoverCall(Writes, TorchExecutorOptions, RecoverChoices, MethodOptions, NetworkOptions):
    out: Annotated[Location, Setting("The new image folder.", option=False)]
    part: Annotated[Part | None, Setting("Make only part I of N of the images; see the examples.")] = field(
        default=None, kw_only=True
    )


@verb(_RecoverCall)
def recover(call: _RecoverCall) -> RunSummary:
    """Synthesise images from a teacher and save them as the image folder OUT.

    \b
    lpld   optimise the images of one class together towards its class statistics
    sre2l  optimise images of many classes together towards the global statistics
    cda    like sre2l, with crops that shrink from the full image
    rded   no optimisation: stitch 2 x 2 crops of real images on which the teacher is most confident

    Run the same command again after a crash or Ctrl-C to resume. OUT also gets recover.json with all settings
    and contact_sheet.png, an overview of the images. rded resumes only with identical real images.
    """
    if call.method == "rded" and call.real is None:
        raise UsageError("--method rded requires --real, a folder of real images")
    if call.method == "lpld" and call.statistics_kind != "global" and call.statistics is None:
        raise UsageError("--method lpld requires --statistics FILE (see squeeze) or --statistics-kind global")
    if call.overwrite and call.part is not None:
        raise UsageError("--overwrite replaces a complete run: it cannot be combined with --part")

    from lpld_core.images import RealFolder
    from lpld_core.recover.run import recover_images
    from lpld_core.squeeze.statistics import ClassStatistics
    from lpld_labels.transforms.outputs import require_apart

    inputs = [path for path in (call.real, call.statistics) if path is not None]
    require_apart(call.out, *inputs)
    machine, real = call.prepare_machine(call), None
    if call.real is not None:
        look_over(call.real)
        real = RealFolder.open(Path(call.real))
    with call.opened_for(call.device, machine.threads) as executor:
        teacher = call.load(device=None if executor.on_this_machine else "cpu")
        chosen = {name: value for name, value in values_of(RecoverChoices, call).items() if value is not None}
        settings = method_settings(
            call.method, size=teacher.input_size, classes=teacher.classes, preset=call.preset, **chosen
        )
        with progress_of(call.progress).stage(f"{call.method} images") as progress:
            return recover_images(
                teacher,
                Path(call.out),
                settings=settings,
                statistics=None if call.statistics is None else ClassStatistics.load(Path(call.statistics)),
                real=real,
                part=call.part,
                overwrite=call.overwrite,
                executor=executor,
                machine=machine,
                progress=progress,
            )
