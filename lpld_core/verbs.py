"""The verbs build, verify, train and doctor. Importing this module does not import torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lpld_core.options import (
    THREADS,
    MachineOptions,
    TeacherOptions,
    TorchExecutorOptions,
    check_device,
    look_over,
)
from lpld_core.settings import BuildSettings, LabelSettings, Precision
from lpld_core.train.settings import ExperimentName, Replay, TrainSettings, parse_phases, preset_named
from lpld_labels.errors import InvalidArgumentError, UsageError
from lpld_labels.format.limits import MAX_SEED
from lpld_labels.io.addresses import Location, is_address, redact
from lpld_labels.options import FromPool, NewPool, Shows, Writes
from lpld_labels.progress import Progress, progress_of
from lpld_labels.results import Result
from lpld_labels.settings import Setting, check_settings, part_of, values_of, verb

if TYPE_CHECKING:
    from lpld_core.doctor import Diagnosis
    from lpld_core.relabel.build import Build, BuildResult
    from lpld_core.relabel.verify_teacher import TeacherCheck
    from lpld_core.train.evaluate import Accuracy
    from lpld_core.train.ranks import Ranks
    from lpld_core.train.student import TrainResult
    from lpld_core.train.trainer import EpochProgress
    from lpld_labels.inspect.check import CheckReport

log = logging.getLogger(__name__)

_MOST_PIXEL_THREADS = 8


@dataclass(frozen=True)
class _BuildCall(Writes, TorchExecutorOptions, LabelSettings, TeacherOptions):
    images: Annotated[Location, Setting("An image folder, one directory per class.", option=False)]
    out: NewPool
    preset: Annotated[
        ExperimentName | None,
        Setting("Settings of a published experiment; other options override them.  [default: imagenet1k]"),
    ] = field(default=None, kw_only=True)
    dry_run: Annotated[bool, Setting("Label one batch in memory and estimate the cost of the pool.")] = field(
        default=False, kw_only=True
    )


def build_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return default settings: the preset's values, and the `resize` that `replayable_by` implies."""
    values = values_of(LabelSettings, preset_named(given.get("preset")).label)
    if given.get("replayable_by") is not None:
        values["resize"] = "pil"
    return values


@verb(_BuildCall, defaults=build_defaults)
def build(call: _BuildCall) -> BuildResult:
    """Label the image folder IMAGES (one directory per class) and write the pool OUT.

    Run the same command again after a crash or Ctrl-C to resume. Run it with a smaller --ratio to grow a
    pool: only the missing batches are labelled. Two views are labelled in memory before anything is written,
    so invalid settings fail at once.

    EXIF orientation is not applied. 16-bit samples are scaled to 8 bits; floating-point and 32-bit samples
    are refused. Files without an image extension are skipped and listed; hidden folders and __MACOSX are not
    classes.
    """
    from lpld_core.relabel.build import BuildResult, run_build
    from lpld_core.relabel.source import dry_run
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
        raise UsageError("--overwrite replaces a complete pool: it cannot be combined with --part")
    if is_address(call.out) and call.part is not None:
        raise UsageError("parts need a shared directory: with --part, OUT cannot be an address")
    if call.ray is None:
        check_device(call.device)
    call.require_shared(call.out)
    require_apart(call.out, call.images)
    classes, shown = len(look_over(call.images)), progress_of(call.progress)
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
        return BuildResult(labelled=0, manifest=None, image_classes=classes, cost=cost)
    with (
        call.opened_for(call.device, threads) as executor,
        destination(call.out, overwrite=call.overwrite, extend=True) as path,
    ):
        build = _prepared(call, path, settings, shown)
        with shown.stage("labelling batches") as progress:
            result = run_build(build, executor, overwrite=call.overwrite, progress=progress)
    return replace(result, image_classes=classes)


def _prepared(call: _BuildCall, out: Path, settings: BuildSettings, shown: Progress) -> Build:
    from lpld_core.relabel.build import Build

    # With Ray this machine only labels the preflight's views, and may have no GPU.
    device = None if call.ray is None else "cpu"
    with shown.stage("reading images") as progress:
        build = Build.prepare(Path(call.images), out, settings, device=device, image_progress=progress)
    count, batch_size = len(build.table), settings.batch_size
    if count < batch_size:
        log.warning(
            "warning: %d images do not fill a batch of %d, so every batch is incomplete; "
            "--batch-size %d makes them complete",
            *(count, batch_size, count),
        )
    return build


@dataclass(frozen=True, kw_only=True)
class _VerifyCall(Shows, MachineOptions, TeacherOptions, FromPool):
    images: Annotated[
        Location | None,
        Setting("With --teacher: the labelled image folder; not needed if POOL carries its images."),
    ] = None
    batches: Annotated[int, Setting("Number of batches to label again.", ge=1)] = 8
    tolerance: Annotated[
        float | None,
        Setting("Largest allowed difference of a label.  [default: the codec's rounding error]", ge=0),
    ] = None
    seed: Annotated[int, Setting("Seed of the sample of batches.", ge=0, le=MAX_SEED)] = 0
    amp: Annotated[Precision, Setting("Mixed precision; must be as POOL was labelled.")] = "off"
    strict: Annotated[
        bool, Setting("For untrusted pools: check in a child process with limits, and report unneeded data.")
    ] = False

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class Verified(Result):
    """Result of `verify`. report: whether the pool is intact. teacher: check of its labels, if requested."""

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


@verb(_VerifyCall)
def verify(call: _VerifyCall) -> Verified:
    """Check that a pool is intact and, given its images and teacher, that its labels are correct.

    Compares file digests and page checksums, row counts, key order, ranges, duplicates and the digest of
    every batch; images that the pool carries are compared with their digests. Lists every damaged file.

    With --teacher, and --images unless the pool carries them, it then renders the views of sampled batches,
    runs the teacher on them and compares the labels as they are stored (logits or probabilities). A pool of
    several teachers needs all of them, in order. The exit code is 0 if everything is correct, else 1.

    --strict is for pools from untrusted sources: the check runs in a child process with limits on memory and
    time. It also reports what the format allows but our pools never contain, and where data could be hidden:
    files beside the pool's own (except README.md), symbolic links, manifest fields that readers ignore,
    unknown resize code.
    """
    from lpld_labels.inspect.check import check_pool
    from lpld_labels.pool.pool_files import manifest_of
    from lpld_labels.render.images import no_images

    for name, value in (("--images", call.images), ("--size", call.size)):
        if value is not None and not call.teacher:
            raise UsageError(f"{name} requires --teacher")
    if call.teacher:
        import torch  # noqa: F401  # fails before the bytes are checked

        if call.images is None and not manifest_of(call.pool).files_of("packed"):
            raise no_images(redact(call.pool))
    shown = progress_of(call.progress)
    with shown.stage("checking bytes") as progress:
        report = check_pool(call.pool, strict=call.strict, progress=progress)
    check = _check_labels(call, shown) if report.whole and call.teacher else None
    return Verified(report=report, teacher=check)


def _check_labels(call: _VerifyCall, shown: Progress) -> TeacherCheck:
    """Label sampled batches again and compare; refuse a --size other than that of the pool's views."""
    from lpld_core.relabel.verify_teacher import verify_with_teacher
    from lpld_core.teachers.ensemble import load_ensemble
    from lpld_labels.pool.reader import PoolReader

    choices, size = call.choices(), call.size
    call.prepare_machine()
    with PoolReader(call.pool) as reader, shown.stage("labelling batches again") as progress:
        how = reader.header.augmentation
        if size is not None and (size, size) != (how.output_height, how.output_width):
            raise InvalidArgumentError(
                "--size does not match the size of the pool's views",
                where=reader.location,
                expected=f"--size {how.output_height}, or no --size",
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


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What `train` trains on, and where it writes."""

    images: Annotated[
        Location | None, Setting("The labelled image folder; not needed if POOL carries its images.")
    ] = None
    val: Annotated[Location | None, Setting("Image folder to measure accuracy on.")] = None
    val_by_order: Annotated[
        bool, Setting("Match the class folders of --val by order instead of by name.")
    ] = False
    out: Annotated[Location | None, Setting("Directory of the run.  [default: POOL's name + -student]")] = (
        None
    )
    preset: Annotated[
        ExperimentName | None,
        Setting(
            "Settings of a published experiment; other options override them.  "
            "[default: imagenet1k, but --sampling shuffled]"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TrainCall(Writes, TrainSettings, RunOptions, FromPool):
    """Arguments of `train`."""

    threads: Annotated[int | None, Setting(THREADS, ge=1)] = None

    @property
    def place(self) -> Path:
        """The directory of the run. Its default name omits queries and passwords of an address."""
        name = Path(redact(self.pool).partition("?")[0].rstrip("/")).name
        return Path(f"{name}-student") if self.out is None else Path(self.out)


def train_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return default settings: the preset's values, the sum of the phases' epochs, and workers for a GPU."""
    values = values_of(TrainSettings, preset_named(given.get("preset")).train)
    if given.get("phases"):
        values["epochs"] = sum(epochs for _, epochs in parse_phases(given["phases"]))
    if given.get("device", "cpu") != "cpu":
        values["workers"] = min(8, os.cpu_count() or 1)
    return values


@verb(TrainCall, defaults=train_defaults)
def train(call: TrainCall) -> TrainResult:
    """Train a student from POOL and the images it labels.

    The number of steps does not depend on the pool's size: label batches of a small pool are used more often.
    Run the same command again after a crash: it resumes from the last checkpoint and ends with the same
    weights. The run's directory gets log.jsonl, checkpoint.safetensors and student.safetensors.

    A decaying temperature (--temperature-schedule, preset lpqld) needs labels that serve every
    temperature: all logits (f16, int8) or klt. Top-k labels serve low temperatures only.

    --phases trains some epochs on hard labels: fresh views of the images and their true classes. It helps
    where few soft labels are left.

    Several processes (torchrun) share the rows of every step: --batch-size is their total, and a run may
    resume with a different number of processes. BatchNorm sees only a process's own rows.
    """
    from lpld_core.train.ranks import joined_ranks

    require_trainable(call)
    with joined_ranks(call.device) as ranks:
        return train_in(call, ranks)


def require_trainable(call: TrainCall) -> None:
    """Raise an error if the arguments are invalid; set this process's number of threads."""
    if call.val_by_order and call.val is None:
        raise UsageError("--val-by-order requires --val")
    import torch

    from lpld_core.train.ranks import threads_of_a_rank
    from lpld_labels.transforms.outputs import require_apart

    check_device(call.device)
    inputs = [path for path in (call.pool, call.images, call.val) if path is not None]
    require_apart(call.place, *inputs)
    if call.image_cache is not None:
        require_apart(call.image_cache, call.place, *inputs)
    torch.set_num_threads(threads_of_a_rank(call.threads))


def train_in(call: TrainCall, ranks: Ranks) -> TrainResult:
    """Train together with all other processes that joined the run."""
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

            def watch(epoch: EpochProgress, accuracy: Accuracy | None, after: int) -> None:
                score = "" if accuracy is None else f", top-1 {accuracy.top1:.1%} (epoch {after})"
                progress.note(f"loss {epoch.loss:.4g}, lr {epoch.learning_rate:.3g}{score}")

            return train_student(
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


@dataclass(frozen=True, kw_only=True)
class _DoctorCall(Shows, TeacherOptions):
    pool: Annotated[
        Location | None, Setting("A pool: a path or an address.  [default: a small new one]", option=False)
    ] = field(default=None, kw_only=False)
    images: Annotated[Location | None, Setting("The labelled images, unless POOL carries them.")] = None
    device: Annotated[str | None, Setting("Device.  [default: cuda if there is one, else cpu]")] = None
    student: Annotated[str | None, Setting("Network to train.  [default: as for train]")] = None
    batch_size: Annotated[int | None, Setting("Rows per step.  [default: the pool's]", ge=1)] = None
    replay: Annotated[Replay, Setting("Where views are rendered, as for train.")] = "auto"
    workers: Annotated[int | None, Setting("Loader processes.  [default: as for train]", ge=0)] = None
    amp: Annotated[Precision, Setting("Mixed precision of student and teacher.")] = "off"


@verb(_DoctorCall)
def doctor(call: _DoctorCall) -> Diagnosis:
    """Check this machine, and measure what limits training on it. Bug reports need the output of --json.

    Shows versions and devices. Checks that labels of a few batches of POOL decode, and views render, as on a
    CPU, and that --teacher gives the labels of one. Then measures images per second: of the loader alone, of
    training steps alone, and of both. Without POOL, it uses a small one. A failed check gives exit code 1.
    """
    import torch

    from lpld_core.doctor import Patient

    if call.pool is None and (call.images is not None or call.teacher):
        raise UsageError("--images and --teacher require POOL")
    device = call.device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(device)
    workers = train_defaults({"device": device})["workers"] if call.workers is None else call.workers
    settings = part_of(TrainSettings, call, device=device, workers=workers)
    patient = part_of(Patient, call, teachers=call.choices() if call.teacher else (), settings=settings)
    with progress_of(call.progress).stage("examining") as progress:
        return patient.examine(progress)
