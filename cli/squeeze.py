"""``lpld-labels squeeze``: class-wise BatchNorm statistics of a teacher on its training data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_core.squeeze.settings import SqueezeSettings
from lpld_labels.inspect.text import human_bytes

from .common import FOLDER, json_option, look_over, overwrite_option, val_by_order_option
from .console import print_json
from .groups import EngineOptions, NetworkOptions
from .options import settings_options, take
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_core.images import RealFolder
    from lpld_core.squeeze.squeeze import UpdateBound
    from lpld_core.squeeze.statistics import ClassStatistics
    from lpld_core.teachers.teacher import LoadedTeacher, Machine
    from lpld_labels.exec.job import Executor


@dataclass(frozen=True, kw_only=True)
class Options(NetworkOptions):
    """What the command line said."""

    data: Path
    out: Path
    settings: SqueezeSettings
    workers: EngineOptions
    train_teacher: bool
    epochs: int | None
    val: Path | None
    val_by_order: bool
    overwrite: bool
    as_json: bool


@click.command("squeeze")
@click.argument("data", type=FOLDER)
@click.argument("out", type=click.Path(path_type=Path))
@settings_options(NetworkOptions)
@settings_options(SqueezeSettings)
@click.option(
    "--train-teacher",
    is_flag=True,
    help="First train the teacher on DATA from scratch and save it as --teacher-weights.",
)
@click.option("--epochs", type=click.IntRange(1), help="Of --train-teacher [default: 30].")
@click.option("--val", type=FOLDER, help="Image folder to measure a trained teacher on.")
@val_by_order_option
@settings_options(EngineOptions)
@overwrite_option
@json_option("text")
def command(**given: Any) -> None:
    """Compute per-class BatchNorm statistics of a teacher on DATA and save them as OUT.

    DATA is an image folder with one directory per class; OUT a safetensors file. A pass serves all
    classes. The paper's bound says how many a moving average needs; exact moments need no such thing,
    and are the same, bit for bit, however many workers gather them (at equal --threads).
    Run the same command again after a crash or Ctrl-C: it resumes, except for classes whose images were
    changed by path, size or date. An OUT from other settings or images is replaced with --overwrite only.

    \b
    Examples:
      lpld-labels squeeze imagenet/train in1k.safetensors --teacher resnet18 --device cuda
      lpld-labels squeeze imagenet/train in1k.safetensors --teacher resnet18 --views crop --update ema
      lpld-labels squeeze small/train stats.safetensors --train-teacher --size 32 \\
          --teacher small-resnet10:width=32,stem_stride=2 --teacher-weights teacher.safetensors
    """
    settings = take(SqueezeSettings, given)
    options = Options(settings=settings, workers=take(EngineOptions, given), **given)
    _check(options)
    machine = options.prepare_machine(options.workers)
    look_over(options.data)
    try:
        with options.workers.opened() as engine:
            _squeeze(options, engine, machine)
    except KeyboardInterrupt:
        click.echo("stopped: what is done is safe; run the same command again", err=True)
        raise


def _squeeze(options: Options, engine: Executor, machine: Machine) -> None:
    """Train the teacher if asked for, gather, save, show."""
    from lpld_core.images import RealFolder
    from lpld_core.networks.batchnorm import batchnorm_layers
    from lpld_core.squeeze.squeeze import finished_squeeze, folder_bound, squeeze_folder
    from lpld_core.unfinished import unfinished_beside, workplace

    folder = RealFolder.open(options.data)
    bound = folder_bound(folder, options.settings)
    training = _training(options, folder) if options.train_teacher else None
    device = None if engine.on_this_machine else "cpu"
    teacher = None if training is not None else options.load(classes=folder.classes, device=device)
    if teacher is not None:
        batchnorm_layers(teacher.model, name=f"teacher {options.network}")
    _require_free(options, teacher, folder)
    # Nothing is written before this line.
    with workplace(unfinished_beside(options.out)) as place:
        accuracy = None if training is None else training()
        teacher = teacher or options.load(classes=folder.classes, device=device)
        statistics = finished_squeeze(options.out, teacher, folder, options.settings)
        if statistics is None:
            _require_replaceable(options)
            with progress_bar("squeezing images") as progress:
                statistics = squeeze_folder(
                    teacher,
                    folder,
                    options.settings,
                    place=place.absolute(),
                    executor=engine,
                    machine=machine,
                    progress=progress,
                )
            statistics.save(options.out, within=place)
        else:
            click.echo(f"{options.out} is there already, from the same squeeze", err=True)
    _show(options, teacher, statistics, bound, accuracy)


def _require_free(options: Options, teacher: LoadedTeacher | None, folder: RealFolder) -> None:
    """Refuse an OUT that is not what this squeeze makes, as far as one can tell yet."""
    from lpld_core.squeeze.squeeze import finished_squeeze

    if teacher is not None and finished_squeeze(options.out, teacher, folder, options.settings) is not None:
        return
    if teacher is not None or not Path(options.weights).exists():
        _require_replaceable(options)


def _require_replaceable(options: Options) -> None:
    """Refuse an OUT that is there, unless it is to be replaced and holds statistics."""
    from lpld_core.squeeze.statistics import ClassStatistics
    from lpld_labels.errors import PoolConflictError
    from lpld_labels.transforms.outputs import OVERWRITE_HINT

    if not options.out.exists():
        return
    if not options.overwrite:
        raise PoolConflictError("something else is already here", where=options.out, hint=OVERWRITE_HINT)
    ClassStatistics.load(options.out)


def _check(options: Options) -> None:
    """Refuse options that contradict each other, before anything is read."""
    from lpld_labels.transforms.outputs import require_apart

    require_apart(options.out, options.data, *([] if options.val is None else [options.val]))
    if options.val_by_order and options.val is None:
        raise click.UsageError("--val-by-order goes with --val")
    if not options.train_teacher:
        if options.epochs is not None or options.val is not None:
            raise click.UsageError("--epochs and --val go with --train-teacher")
        return
    if options.weights in ("DEFAULT", "random"):
        raise click.UsageError("--train-teacher needs --teacher-weights FILE, the file to write")
    if Path(options.weights).absolute() == options.out.absolute():
        raise click.UsageError("OUT and --teacher-weights are the same file")


def _training(options: Options, folder: RealFolder) -> Callable[[], float | None]:
    """Return what trains the teacher, saves it and gives its accuracy on --val; all inputs are checked."""
    from lpld_core.train.evaluate import ValidationSet
    from lpld_core.train.train_teacher import (
        TEACHER_RECIPE,
        TeacherJob,
        check_network,
        train_teacher,
        trained_by,
    )

    weights = Path(options.weights)
    if weights.exists() and trained_by(weights) is None:
        raise click.UsageError(f"{options.weights} exists: leave out --train-teacher to use it")
    side = options.size or 64
    job = TeacherJob(
        out=weights,
        network=options.network,
        size=(side, side),
        recipe=replace(
            TEACHER_RECIPE,
            epochs=options.epochs or TEACHER_RECIPE.epochs,
            mean=options.mean,
            std=options.std,
            seed=options.settings.seed,
            device=options.device,
        ),
    )
    check_network(job, folder.classes)
    validation = None
    if options.val is not None:
        look_over(options.val)
        validation = ValidationSet(options.val, size=job.size, by_order=options.val_by_order)
        validation.require_classes(folder.classes, folder.class_names)

    def train() -> float | None:
        with progress_bar("training the teacher") as progress:
            found = train_teacher(options.data, job, validation=validation, progress=progress)
        click.echo(f"teacher saved as {options.weights}", err=True)
        return None if found is None else found.top1

    return train


def _show(
    options: Options,
    teacher: LoadedTeacher,
    statistics: ClassStatistics,
    bound: UpdateBound,
    accuracy: float | None,
) -> None:
    model_bytes = sum(tensor.nbytes for tensor in teacher.model.state_dict().values())
    if options.as_json:
        print_json(
            {
                "statistics": str(options.out),
                "views": statistics.views,
                "passes": statistics.passes,
                "update": statistics.update,
                "classes": statistics.classes,
                "images": int(statistics.counts.sum()),
                "layers": len(statistics.layers),
                "bytes": statistics.nbytes,
                "model_bytes": model_bytes,
                "teacher_top1": accuracy,
                "bound": {
                    **asdict(bound),
                    "required_passes": bound.required_passes,
                    "one_pass_suffices": bound.one_pass_suffices,
                },
            }
        )
        return
    if accuracy is not None:
        click.echo(f"teacher: top-1 {accuracy:.1%} on {options.val}")
    shown = "images" if statistics.views == "centre" else "random views"
    click.echo(
        f"{options.out}: {statistics.classes} classes x {len(statistics.layers)} BatchNorm layers "
        f"from {int(statistics.counts.sum()):,} {shown} ({statistics.update})"
    )
    click.echo(
        f"size: {human_bytes(statistics.nbytes)} ({statistics.nbytes / 2**20:.2f} MiB) "
        f"next to {human_bytes(model_bytes)} ({model_bytes / 2**20:.2f} MiB) of the model"
    )
    verdict = "one pass is enough"
    if not bound.one_pass_suffices:
        verdict = f"one pass is not enough, {bound.required_passes} are"
    click.echo(
        f"bound for a moving average: {bound.required:,} batches of {options.settings.batch_size}, "
        f"one pass has {bound.available:,}: {verdict}"
    )
    if statistics.update == "ema" and statistics.passes < bound.required_passes:
        click.echo(
            "warning: these averages have not settled; use --update exact "
            f"or --passes {bound.required_passes}",
            err=True,
        )
