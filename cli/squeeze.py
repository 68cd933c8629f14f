"""``lpld-labels squeeze``: class-wise BatchNorm statistics of a teacher on its training data."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_core.settings import DEFAULT_WEIGHTS, RANDOM_WEIGHTS, SqueezeSettings

from .common import FILE, FOLDER, json_option, look_over, overwrite_option, says_if_stopped
from .console import show
from .groups import NetworkOptions, TorchExecutorOptions
from .options import settings_options, take
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_core.images import RealFolder
    from lpld_core.squeeze.squeeze import UpdateBound
    from lpld_core.squeeze.statistics import ClassStatistics
    from lpld_core.teachers.teacher import LoadedTeacher

_TEACHER_SIDE = 64


@click.command("squeeze")
@click.argument("data", type=FOLDER)
@click.argument("out", type=FILE)
@settings_options(NetworkOptions)
@settings_options(SqueezeSettings)
@click.option(
    "--train-teacher",
    is_flag=True,
    help="First train the teacher on DATA from scratch and save it as --teacher-weights.",
)
@click.option("--epochs", type=click.IntRange(1), help="Of --train-teacher [default: 30].")
@click.option("--val", type=FOLDER, help="Image folder to measure a trained teacher on.")
@settings_options(TorchExecutorOptions)
@overwrite_option
@json_option("text")
def command(
    data: Path,
    out: Path,
    train_teacher: bool,
    epochs: int | None,
    val: Path | None,
    overwrite: bool,
    as_json: bool,
    **given: Any,
) -> None:
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
    workers = take(TorchExecutorOptions, given)
    settings = take(SqueezeSettings, given)
    network = take(NetworkOptions, given)
    if train_teacher and network.weights in (DEFAULT_WEIGHTS, RANDOM_WEIGHTS):
        raise click.UsageError("--train-teacher needs --teacher-weights FILE, the file to write")
    if not train_teacher and (epochs is not None or val is not None):
        raise click.UsageError("--epochs and --val go with --train-teacher")

    from lpld_core.images import RealFolder
    from lpld_core.networks.batchnorm import batchnorm_layers
    from lpld_core.squeeze.squeeze import finished_squeeze, folder_bound, squeeze_folder
    from lpld_core.unfinished import unfinished_beside, workplace
    from lpld_labels.transforms.outputs import require_apart

    require_apart(out, data, network.weights, *([] if val is None else [val]))
    machine = network.prepare_machine(workers)
    look_over(data)
    folder = RealFolder.open(data)
    with says_if_stopped(out), workers.opened_on(network.device, machine.threads) as executor:
        accuracy = None
        if train_teacher:
            if not Path(network.weights).exists():
                _require_replaceable(out, overwrite)
            accuracy = _train(network, folder, epochs=epochs, val=val, seed=settings.seed)
        teacher = network.load(classes=folder.classes, device=None if executor.on_this_machine else "cpu")
        batchnorm_layers(teacher.model, name=f"teacher {network.network}")
        statistics = finished_squeeze(out, teacher, folder, settings)
        if statistics is not None:
            click.echo(f"{out} is there already, from the same squeeze", err=True)
        else:
            _require_replaceable(out, overwrite)
            with workplace(unfinished_beside(out)) as place, progress_bar("squeezing images") as progress:
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
    show(f"Statistics of {data}", _facts(out, teacher, statistics, bound, accuracy), as_json=as_json)
    if statistics.update == "ema" and statistics.passes < bound.required_passes:
        click.echo(
            "warning: these averages have not settled; use --update exact "
            f"or --passes {bound.required_passes}",
            err=True,
        )


def _require_replaceable(out: Path, overwrite: bool) -> None:
    """Refuse an OUT that is there, unless it is to be replaced and holds statistics."""
    from lpld_core.squeeze.statistics import ClassStatistics
    from lpld_labels.errors import PoolConflictError
    from lpld_labels.transforms.outputs import OVERWRITE_HINT

    if out.exists():
        if not overwrite:
            raise PoolConflictError("something else is already here", where=out, hint=OVERWRITE_HINT)
        ClassStatistics.load(out)


def _train(
    network: NetworkOptions, folder: RealFolder, *, epochs: int | None, val: Path | None, seed: int
) -> float | None:
    """Train the teacher, save it, and return its accuracy on `val`."""
    from lpld_core.train.evaluate import ValidationSet
    from lpld_core.train.train_teacher import (
        TEACHER_RECIPE,
        TeacherJob,
        check_network,
        train_teacher,
        trained_by,
    )

    weights = Path(network.weights)
    if weights.exists() and trained_by(weights) is None:
        raise click.UsageError(f"{weights} exists: leave out --train-teacher to use it")
    side = network.size or _TEACHER_SIDE
    recipe = replace(
        TEACHER_RECIPE,
        epochs=epochs or TEACHER_RECIPE.epochs,
        mean=network.mean,
        std=network.std,
        seed=seed,
        device=network.device,
    )
    job = TeacherJob(out=weights, network=network.network, size=(side, side), recipe=recipe)
    check_network(job, folder.classes)
    validation = None
    if val is not None:
        look_over(val)
        validation = ValidationSet(val, size=job.size)
        validation.require_classes(folder.classes, folder.class_names)
    with progress_bar("training the teacher") as progress:
        accuracy = train_teacher(folder.root, job, validation=validation, progress=progress)
    click.echo(f"teacher saved as {weights}", err=True)
    return None if accuracy is None else accuracy.top1


def _facts(
    out: Path,
    teacher: LoadedTeacher,
    statistics: ClassStatistics,
    bound: UpdateBound,
    accuracy: float | None,
) -> dict[str, Any]:
    return {
        "statistics": str(out),
        "views": statistics.views,
        "passes": statistics.passes,
        "update": statistics.update,
        "classes": statistics.classes,
        "images": int(statistics.counts.sum()),
        "layers": len(statistics.layers),
        "bytes": statistics.nbytes,
        "model_bytes": sum(tensor.nbytes for tensor in teacher.model.state_dict().values()),
        "teacher_top1": accuracy,
        "bound": asdict(bound),
    }
