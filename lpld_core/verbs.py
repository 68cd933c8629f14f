"""The verbs that need torch: squeeze, recover, build, train; and verify, which needs it for a teacher.

Like `lpld_labels.verbs`: importing this module does not import torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lpld_core.recover.settings import Method, PresetName, RecoverChoices, method_settings
from lpld_core.settings import (
    DEFAULT_WEIGHTS,
    RANDOM_WEIGHTS,
    BuildSettings,
    LabelSettings,
    Part,
    SqueezeSettings,
    TeacherChoice,
)
from lpld_core.train.settings import ExperimentName, TrainSettings, preset_named
from lpld_labels.errors import InvalidArgumentError, PoolConflictError, UsageError
from lpld_labels.format.limits import MAX_SEED
from lpld_labels.io.addresses import Location, is_address, redact
from lpld_labels.progress import Progress, progress_of
from lpld_labels.results import Result
from lpld_labels.settings import Setting, check_settings, part_of, values_of, verb
from lpld_labels.verbs import ExecutorOptions, Folder, FromPool, Shows, Writes

if TYPE_CHECKING:
    from lpld_core.images import RealFolder
    from lpld_core.relabel.build import Build
    from lpld_core.relabel.verify_teacher import TeacherCheck
    from lpld_core.squeeze.squeeze import UpdateBound
    from lpld_core.teachers.teacher import LoadedTeacher, Machine
    from lpld_core.train.evaluate import Accuracy
    from lpld_core.train.ranks import Ranks
    from lpld_core.train.trainer import EpochProgress
    from lpld_labels.exec.job import Executor
    from lpld_labels.format.manifest import Manifest
    from lpld_labels.inspect.check import CheckReport

log = logging.getLogger(__name__)

_NETWORKS = "resnet18, timm:NAME, small-resnet18:width=32 or package.module:factory."
_WEIGHTS = "DEFAULT, random, or a safetensors or torch file"
_NORMALISATION = "Normalisation, if the weights do not record it."
_SIZE = "in pixels.  [default: the teacher's]"
_THREADS = "CPU threads per process.  [default: the CPUs, divided among the processes]"
_MOST_PIXEL_THREADS = 8
_TEACHER_SIDE = 64
_SHOWN_FILES = 3


def check_device(device: str) -> None:
    """Refuse a device that torch cannot use, before any work starts."""
    import torch

    from lpld_core.networks.weights import first_line

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"device '{device}' is not usable here: {first_line(error)}") from None


def look_over(folder: Folder) -> list[str]:
    """Return the class names of an image folder; log files that are skipped.

    One image of each kind is decoded, so that unsupported kinds fail before any work starts.
    """
    from lpld_labels.render.images import class_names, list_images, passed_over, try_each_kind

    root = Path(folder)
    paths, _ = list_images(root)
    try_each_kind(root, paths)
    skipped = passed_over(root)
    if skipped:
        files = f"{len(skipped)} files" if len(skipped) > 1 else "1 file"
        shown = ", ".join(skipped[:_SHOWN_FILES]) + (", ..." if len(skipped) > _SHOWN_FILES else "")
        log.warning("note: %s in %s skipped, no image extension: %s", files, folder, shown)
    return class_names(root)


@dataclass(frozen=True, kw_only=True)
class TorchExecutorOptions(ExecutorOptions):
    """Executor of workers that run a network."""

    gpus_per_task: Annotated[
        float | None, Setting("GPUs per Ray worker, e.g. 0.5.  [default: 1 with --device cuda, else 0]", ge=0)
    ] = None

    @contextmanager
    def opened_for(self, device: str, threads: int | None) -> Iterator[Executor]:
        """Open the executor. device, threads: what a worker computes with."""
        gpus = float(device.startswith("cuda")) if self.gpus_per_task is None else self.gpus_per_task
        with self.opened(gpus=gpus, threads=threads) as executor:
            yield executor


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Where torch computes."""

    device: Annotated[str, Setting("cpu, cuda, cuda:1, mps ...")] = "cpu"
    threads: Annotated[int | None, Setting(_THREADS, ge=1)] = None

    def prepare_machine(self, workers: ExecutorOptions | None = None) -> Machine:
        """Set this process's threads, check the device, and return where workers compute."""
        import torch

        from lpld_core.teachers.teacher import Machine

        workers = workers or ExecutorOptions()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if workers.ray is None:
            check_device(self.device)
        return Machine(device=self.device, threads=workers.threads_each(self.threads))


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(MachineOptions):
    """One network and where it computes, for squeeze, recover and analyze."""

    teacher: Annotated[str, Setting(_NETWORKS)]
    weights: Annotated[Folder, Setting(f"{_WEIGHTS}.")] = DEFAULT_WEIGHTS
    size: Annotated[int | None, Setting(f"Side of its images {_SIZE}", ge=1)] = None
    mean: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None
    std: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None

    def load(self, *, classes: int | None = None, device: str | None = None) -> LoadedTeacher:
        """Load the network; refuse one with another class count. device: overrides the field."""
        from lpld_core.teachers.teacher import load_teacher

        return load_teacher(
            self.teacher,
            weights=os.fspath(self.weights),
            classes=classes,
            input_size=None if self.size is None else (self.size, self.size),
            mean=self.mean,
            std=self.std,
            device=device or self.device,
        )


@dataclass(frozen=True, kw_only=True)
class TeacherOptions:
    """The teachers of a pool; several form an ensemble."""

    teacher: Annotated[
        tuple[str, ...] | list[str] | str, Setting(f"{_NETWORKS} Give several for an ensemble.")
    ] = ()
    weights: Annotated[
        tuple[Folder, ...] | list[Folder] | Folder,
        Setting(f"{_WEIGHTS}, one per --teacher.  [default: the published weights]"),
    ] = ()
    size: Annotated[int | None, Setting(f"Side of a view {_SIZE}", ge=1)] = None
    mean: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None
    std: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None

    def choices(self, preset: tuple[TeacherChoice, ...] = ()) -> tuple[TeacherChoice, ...]:
        """Pair each teacher with its weights. preset: teachers if none are given."""
        given = (self.teacher,) if isinstance(self.teacher, str) else tuple(self.teacher)
        names = given or tuple(teacher.name for teacher in preset)
        one = isinstance(self.weights, (str, os.PathLike))
        weights = [os.fspath(file) for file in ([self.weights] if one else self.weights)]
        if not names:
            raise UsageError("Missing option '--teacher'.")
        if weights and len(weights) != len(names):
            raise UsageError(
                f"give --teacher-weights once per --teacher ({len(names)} times), got {len(weights)}"
            )
        size = None if self.size is None else (self.size, self.size)
        return tuple(
            TeacherChoice(name=name, weights=file, input_size=size, mean=self.mean, std=self.std)
            for name, file in zip(names, weights or [DEFAULT_WEIGHTS] * len(names), strict=True)
        )


@dataclass(frozen=True)
class ImagesToPool:
    """Positional arguments of `build`."""

    images: Annotated[Folder, Setting("An image folder, one directory per class.", option=False)]
    out: Annotated[Location, Setting("The pool: a path or an address.", option=False)]


@dataclass(frozen=True, kw_only=True)
class BuildCall(Writes, TorchExecutorOptions, LabelSettings, TeacherOptions, ImagesToPool):
    """Arguments of `build`."""

    preset: Annotated[
        ExperimentName | None,
        Setting("Settings of a published experiment; the others override them.  [default: imagenet1k]"),
    ] = None
    dry_run: Annotated[bool, Setting("Label one batch in memory and return what the pool would cost.")] = (
        False
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Built(Result):
    """A labelled folder. The counts of the pool are None until the last part publishes it.

    cost: of a dry run, which writes nothing.
    """

    pool: str
    labelled_batches: int
    image_classes: int
    published: bool
    batches: int | None
    rows: int | None
    bytes: int | None
    content_digest: str | None
    manifest: Manifest | None = field(repr=False)
    cost: dict[str, Any] | None = field(default=None, repr=False)

    def as_json(self) -> dict[str, Any]:
        return super().as_json() if self.cost is None else self.cost


def build_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preset's values, and those that follow from other arguments."""
    values = values_of(LabelSettings, preset_named(given.get("preset")).label)
    if given.get("replayable_by") is not None:
        values["resize"] = "pil"
    return values


@verb(BuildCall, defaults=build_defaults)
def build(call: BuildCall) -> Built:
    """Label the image folder `images` with a teacher and write the pool `out`.

    The same call resumes after an interruption; with a smaller `ratio` it grows a pool. Two views are
    labelled in memory before anything is written, so invalid settings fail at once.
    """
    from lpld_core.relabel.build import run_build
    from lpld_core.relabel.source import dry_run
    from lpld_labels.pool.sizes import pool_bytes
    from lpld_labels.transforms.outputs import require_apart
    from lpld_labels.transforms.remote_output import destination, gathered_at

    threads = call.threads_each(call.threads)
    settings = part_of(
        BuildSettings,
        call,
        threads=threads,
        teachers=call.choices(preset_named(call.preset).label.teachers),
        # On a CPU the teacher uses all threads.
        workers=1 if call.device == "cpu" else min(_MOST_PIXEL_THREADS, threads),
    )
    if call.overwrite and call.part is not None:
        raise UsageError("--overwrite replaces a complete pool: it does not go with --part")
    if is_address(call.out) and call.part is not None:
        raise UsageError("parts need a shared directory: with --part, OUT cannot be an address")
    if call.ray is None:
        check_device(call.device)
    call.require_shared(call.out)
    require_apart(call.out, call.images)
    classes, shown = len(look_over(call.images)), progress_of(call.progress)
    labelled, manifest, cost = 0, None, None
    if call.dry_run:
        build = _prepared(call, gathered_at(call.out), settings, shown)
        estimate, trial = dry_run(build.source, build.ensemble, build.wanted)
        workers = call.jobs or 1
        cost = {
            **asdict(estimate),
            "workers": workers,
            "trial_views": trial.rows,
            "trial_seconds": round(trial.row_seconds * trial.rows, 4),
            "seconds": round(trial.row_seconds * estimate.views / workers, 1),
        }
    else:
        with (
            call.opened_for(call.device, threads) as executor,
            destination(call.out, overwrite=call.overwrite, extend=True) as path,
        ):
            build = _prepared(call, path, settings, shown)
            with shown.stage("labelling batches") as progress:
                result = run_build(build, executor, overwrite=call.overwrite, progress=progress)
            labelled, manifest = result.labelled, result.manifest
    return Built(
        pool=redact(call.out),
        labelled_batches=labelled,
        image_classes=classes,
        published=manifest is not None,
        batches=None if manifest is None else manifest.counts.batches,
        rows=None if manifest is None else manifest.counts.rows,
        bytes=None if manifest is None else pool_bytes(manifest),
        content_digest=None if manifest is None else manifest.content_digest,
        manifest=manifest,
        cost=cost,
    )


def _prepared(call: BuildCall, out: Path, settings: BuildSettings, shown: Progress) -> Build:
    from lpld_core.relabel.build import Build

    # With Ray this machine only labels the preflight's views, and may have no GPU.
    device = None if call.ray is None else "cpu"
    with shown.stage("reading images") as progress:
        build = Build.prepare(Path(call.images), out, settings, device=device, image_progress=progress)
    count, batch_size = len(build.table), settings.batch_size
    if count < batch_size:
        log.warning(
            "warning: %d images do not fill a batch of %d: every batch is incomplete, and pruning drops "
            "incomplete batches; --batch-size %d makes them complete",
            *(count, batch_size, count),
        )
    return build


@dataclass(frozen=True, kw_only=True)
class CheckOptions(MachineOptions):
    """The check with a teacher."""

    batches: Annotated[int, Setting("Batches to label again.", ge=1)] = 8
    tolerance: Annotated[
        float | None,
        Setting("Largest allowed difference of a label.  [default: what the codec rounds away]", ge=0),
    ] = None
    seed: Annotated[int, Setting("Seed of the sample of batches.", ge=0, le=MAX_SEED)] = 0
    amp: Annotated[bool, Setting("Mixed precision, as the pool was labelled.")] = False

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class PoolImages:
    """The images of a pool to verify."""

    images: Annotated[
        Folder | None,
        Setting("With --teacher: the labelled image folder; not needed if POOL carries its images."),
    ] = None
    strict: Annotated[
        bool,
        Setting(
            "For pools from untrusted sources: check in a child process with limits, and report unneeded data."
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class VerifyCall(Shows, CheckOptions, TeacherOptions, PoolImages, FromPool):
    """Arguments of `verify`."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Verified(Result):
    """Whether a pool is intact and, if a teacher was given, its labels are the teacher's."""

    report: CheckReport
    teacher: TeacherCheck | None

    @property
    def good(self) -> bool:
        return self.report.whole and (self.teacher is None or self.teacher.agrees)

    def as_json(self) -> dict[str, Any]:
        document = {"whole": self.report.whole, **asdict(self.report)}
        if self.teacher is not None:
            document["teacher"] = {"agrees": self.teacher.agrees, **asdict(self.teacher)}
        return document


@verb(VerifyCall)
def verify(call: VerifyCall) -> Verified:
    """Check that `pool` is intact and, given its images and teacher, that its labels are correct.

    Lists every damaged file. With a teacher, it renders the views of sampled batches, runs the teacher on
    them and compares the labels as they are stored. A pool of several teachers needs all of them, in order.
    """
    from lpld_labels.inspect.check import check_pool
    from lpld_labels.pool.pool_files import manifest_of
    from lpld_labels.render.images import no_images

    for name, value in (("--images", call.images), ("--size", call.size)):
        if value is not None and not call.teacher:
            raise UsageError(f"{name} goes with --teacher")
    if call.teacher:
        import torch  # noqa: F401  # before the bytes are checked

        if call.images is None and not manifest_of(call.pool).files_of("packed"):
            raise no_images(call.pool)
    shown = progress_of(call.progress)
    with shown.stage("checking bytes") as progress:
        report = check_pool(call.pool, strict=call.strict, progress=progress)
    check = _check_labels(call, shown) if report.whole and call.teacher else None
    return Verified(report=report, teacher=check)


def _check_labels(call: VerifyCall, shown: Progress) -> TeacherCheck:
    """Label sampled batches again, at the size that they have in the pool."""
    from lpld_core.relabel.verify_teacher import verify_with_teacher
    from lpld_core.teachers.ensemble import load_ensemble
    from lpld_labels.pool.reader import PoolReader

    choices, size = call.choices(), call.size
    call.prepare_machine()
    with PoolReader(call.pool) as reader, shown.stage("labelling batches again") as progress:
        how = reader.header.augmentation
        if size is not None and (size, size) != (how.output_height, how.output_width):
            raise InvalidArgumentError(
                "the pool's views have another size",
                where=reader.location,
                expected=f"--size {how.output_height}, or none",
                got=size,
            )
        ensemble = load_ensemble(choices, classes=reader.classes, device=call.device, amp=call.amp)
        return verify_with_teacher(
            reader,
            call.images,
            ensemble.teachers,
            batches=call.batches,
            seed=call.seed,
            tolerance=call.tolerance,
            amp=call.amp,
            progress=progress,
        )


@dataclass(frozen=True)
class ImagesToFile:
    """Positional arguments of `squeeze`."""

    data: Annotated[Folder, Setting("An image folder, one directory per class.", option=False)]
    out: Annotated[Folder, Setting("The statistics, a safetensors file.", option=False)]


@dataclass(frozen=True, kw_only=True)
class SqueezeCall(Writes, TorchExecutorOptions, SqueezeSettings, NetworkOptions, ImagesToFile):
    """Arguments of `squeeze`."""

    train_teacher: Annotated[
        bool, Setting("First train the teacher on DATA from scratch and save it as --teacher-weights.")
    ] = False
    epochs: Annotated[int | None, Setting("Epochs of --train-teacher.  [default: 30]", ge=1)] = None
    val: Annotated[
        Folder | None, Setting("Image folder to measure the accuracy of a trained teacher on.")
    ] = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Squeezed(Result):
    """Statistics of a folder. bound: the passes that a moving average needs."""

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


@verb(SqueezeCall)
def squeeze(call: SqueezeCall) -> Squeezed:
    """Compute per-class BatchNorm statistics of a teacher on `data` and save them as `out`.

    A moving average needs several passes; the result states the paper's bound. Exact moments need one, and
    are bit-identical for any number of workers (at equal `threads`). The same call resumes an interrupted one.
    """
    settings = part_of(SqueezeSettings, call)
    if call.train_teacher and call.weights in (DEFAULT_WEIGHTS, RANDOM_WEIGHTS):
        raise UsageError("--train-teacher needs --teacher-weights FILE, the file to write")
    if not call.train_teacher and (call.epochs is not None or call.val is not None):
        raise UsageError("--epochs and --val go with --train-teacher")

    from lpld_core.images import RealFolder
    from lpld_core.networks.batchnorm import batchnorm_layers
    from lpld_core.squeeze.squeeze import finished_squeeze, folder_bound, squeeze_folder
    from lpld_core.unfinished import unfinished_beside, workplace
    from lpld_labels.transforms.outputs import require_apart

    out, data = Path(call.out), Path(call.data)
    require_apart(out, data, call.weights, *filter(None, [call.val]))
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
            log.warning("%s is there already, from the same squeeze", out)
            if unfinished_beside(out).exists():
                # An earlier run stopped between its last write and this removal.
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
    """Refuse an existing file, unless it holds statistics and may be replaced."""
    from lpld_core.squeeze.statistics import ClassStatistics
    from lpld_labels.transforms.outputs import OVERWRITE_HINT

    if out.exists():
        if not overwrite:
            raise PoolConflictError("something else is already here", where=out, hint=OVERWRITE_HINT)
        ClassStatistics.load(out)


def _train_teacher(call: SqueezeCall, folder: RealFolder, shown: Progress) -> float | None:
    """Train the teacher, save it, and return its accuracy on `val`."""
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
        raise UsageError(f"{weights} exists: leave out --train-teacher to use it")
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
    log.warning("teacher saved as %s", weights)
    return None if accuracy is None else accuracy.top1


@dataclass(frozen=True)
class ToFolder:
    """The positional argument of `recover`."""

    out: Annotated[Folder, Setting("The new image folder.", option=False)]


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """What `recover` starts from."""

    method: Annotated[Method, Setting("See above.")] = "lpld"
    statistics: Annotated[Folder | None, Setting("Class statistics from squeeze; required by lpld.")] = None
    real: Annotated[
        Folder | None, Setting("Real images: rded takes crops of them, other methods their class names.")
    ] = None
    preset: Annotated[
        PresetName | None,
        Setting(
            "Iterations, lr, alpha and roll of the paper's programs.  "
            "[default: tiny up to 64 px, imagenet1k above]"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RecoverCall(Writes, TorchExecutorOptions, RecoverChoices, MethodOptions, NetworkOptions, ToFolder):
    """Arguments of `recover`."""

    part: Annotated[Part | None, Setting("Make only this part of the images; see the examples.")] = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Recovered(Result):
    """Images of a recovery. complete: whether all parts are made. Losses: means over the groups made now."""

    images: str
    method: str
    made_images: int
    made_groups: int
    kept_groups: int
    seconds: float
    complete: bool
    contact_sheet: str | None
    cross_entropy: float | None
    batchnorm_loss: float | None


@verb(RecoverCall)
def recover(call: RecoverCall) -> Recovered:
    """Synthesise images from a teacher and save them as the image folder `out`.

    Methods:
      lpld   optimise the images of one class together towards its class statistics
      sre2l  optimise images of many classes together towards the global statistics
      cda    like sre2l, with crops that shrink from the full image
      rded   no optimisation: stitch 2 x 2 crops of real images on which the teacher is most confident

    `out` also gets recover.json and contact_sheet.png. The same call resumes an interrupted one.

    """
    if call.method == "rded" and call.real is None:
        raise UsageError("--method rded needs --real, a folder of real images")
    if call.method == "lpld" and call.statistics_kind != "global" and call.statistics is None:
        raise UsageError("--method lpld needs --statistics FILE (see squeeze) or --statistics-kind global")
    if call.overwrite and call.part is not None:
        raise UsageError("--overwrite replaces a complete run: it does not go with --part")

    from lpld_core.images import RealFolder
    from lpld_core.recover.run import recover_images
    from lpld_core.squeeze.statistics import ClassStatistics
    from lpld_labels.transforms.outputs import require_apart

    require_apart(call.out, *filter(None, [call.real, call.statistics]))
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
            made = recover_images(
                teacher,
                call.out,
                settings=settings,
                statistics=None if call.statistics is None else ClassStatistics.load(call.statistics),
                real=real,
                part=call.part,
                overwrite=call.overwrite,
                executor=executor,
                machine=machine,
                progress=progress,
            )
    return Recovered(
        images=str(call.out),
        method=call.method,
        made_images=made.images,
        made_groups=made.made_groups,
        kept_groups=made.kept_groups,
        seconds=round(made.seconds, 3),
        complete=made.complete,
        contact_sheet=None if made.contact_sheet is None else str(made.contact_sheet),
        cross_entropy=made.cross_entropy,
        batchnorm_loss=made.batchnorm,
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What `train` trains on, and where it writes."""

    images: Annotated[
        Folder | None, Setting("The labelled image folder; not needed if POOL carries its images.")
    ] = None
    val: Annotated[Folder | None, Setting("Image folder to measure accuracy on.")] = None
    val_by_order: Annotated[
        bool, Setting("Match the class folders of --val by order instead of by name.")
    ] = False
    out: Annotated[Folder | None, Setting("Directory of the run.  [default: POOL's name + -student]")] = None
    preset: Annotated[
        ExperimentName | None,
        Setting(
            "Settings of a published experiment; the others override them.  "
            "[default: imagenet1k with --sampling shuffled]"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TrainCall(Writes, TrainSettings, RunOptions, FromPool):
    """Arguments of `train`."""

    threads: Annotated[int | None, Setting(_THREADS, ge=1)] = None

    @property
    def place(self) -> Path:
        """The directory of the run. Neither a query nor a password becomes its name."""
        name = Path(redact(self.pool).partition("?")[0].rstrip("/")).name
        return Path(f"{name}-student") if self.out is None else Path(self.out)


@dataclass(frozen=True, kw_only=True, repr=False)
class Trained(Result):
    """A student: its weights file, and its accuracy on `val`."""

    weights: str
    steps: int
    resumed_from_epoch: int
    top1: float | None
    top5: float | None


def train_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preset's values, and workers for a GPU."""
    values = values_of(TrainSettings, preset_named(given.get("preset")).train)
    if given.get("device", "cpu") != "cpu":
        values["workers"] = min(8, os.cpu_count() or 1)
    return values


@verb(TrainCall, defaults=train_defaults)
def train(call: TrainCall) -> Trained:
    """Train a student from `pool` and the images it labels.

    The number of steps does not depend on the pool's size: label batches of a small pool are used more often.
    The same call resumes from the last checkpoint and ends with the same weights. The run's directory `out`
    gets log.jsonl, checkpoint.safetensors and student.safetensors.
    """
    from lpld_core.train.ranks import joined_ranks

    require_trainable(call)
    with joined_ranks(call.device) as ranks:
        return train_in(call, ranks)


def require_trainable(call: TrainCall) -> None:
    """Refuse arguments that cannot work; set this process's threads."""
    if call.val_by_order and call.val is None:
        raise UsageError("--val-by-order goes with --val")
    import torch

    from lpld_core.train.ranks import threads_of_a_rank
    from lpld_labels.transforms.outputs import require_apart

    check_device(call.device)
    inputs = [call.pool, *filter(None, [call.images, call.val])]
    require_apart(call.place, *inputs)
    if call.image_cache is not None:
        require_apart(call.image_cache, call.place, *inputs)
    torch.set_num_threads(threads_of_a_rank(call.threads))


def train_in(call: TrainCall, ranks: Ranks) -> Trained:
    """Train in this process and the others that joined."""
    from lpld_core.train.evaluate import ValidationSet
    from lpld_core.train.student import train_student
    from lpld_labels.pool.reader import PoolReader

    shown = progress_of(call.progress) if ranks.first else Progress()
    with PoolReader(call.pool) as reader:
        validation = None
        if call.val is not None:
            if ranks.first:
                look_over(call.val)
            views = reader.header.augmentation
            size = (views.output_height, views.output_width)
            validation = ValidationSet(Path(call.val), size=size, by_order=call.val_by_order)
        with shown.stage("checking images") as checked, shown.stage("training steps") as progress:

            def watch(epoch: EpochProgress, accuracy: Accuracy | None) -> None:
                score = "" if accuracy is None else f", top-1 {accuracy.top1:.1%}"
                progress.note(f"loss {epoch.loss:.4g}, lr {epoch.learning_rate:.3g}{score}")

            result = train_student(
                reader,
                call.images,
                call.place,
                part_of(TrainSettings, call),
                validation=validation,
                progress=progress,
                watch=watch,
                check_progress=checked,
                overwrite=call.overwrite,
                ranks=ranks,
            )
    accuracy = result.accuracy
    return Trained(
        weights=str(result.weights),
        steps=result.steps,
        resumed_from_epoch=result.resumed_from,
        top1=None if accuracy is None else accuracy.top1,
        top5=None if accuracy is None else accuracy.top5,
    )
