"""``lpld-labels squeeze``: per-class BatchNorm statistics of a teacher on its training data."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_core.settings import DEFAULT_WEIGHTS, RANDOM_WEIGHTS, SqueezeSettings

from .console import look_over, says_if_stopped, show
from .groups import NetworkOptions, TorchExecutorOptions
from .options import FILE, FOLDER, json_option, overwrite_option, settings_options, take
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_core.images import RealFolder

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
@click.option("--epochs", type=click.IntRange(1), help="Epochs of --train-teacher.  [default: 30]")
@click.option("--val", type=FOLDER, help="Image folder to measure the accuracy of a trained teacher on.")
@settings_options(TorchExecutorOptions)
@overwrite_option
@json_option
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

    DATA is an image folder with one directory per class; OUT a safetensors file. Every pass covers all
    classes. A moving average needs several passes; the output states the paper's bound. Exact moments need
    one, and are bit-identical for any number of workers (at equal --threads).

    Run the same command again after a crash or Ctrl-C to resume. Classes whose images changed in path, size
    or date start over. An OUT from other settings or images is only replaced with --overwrite.

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

    require_apart(out, data, network.weights, *filter(None, [val]))
    machine = network.prepare_machine(workers)
    look_over(data)
    folder = RealFolder.open(data)
    with says_if_stopped(out), workers.opened(device=network.device, threads=machine.threads) as executor:
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
            if unfinished_beside(out).exists():
                # An earlier run stopped between its last write and this removal.
                with workplace(unfinished_beside(out)):
                    pass
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
    facts = {
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
    show(f"Statistics of {data}", facts, as_json=as_json)
    if statistics.update == "ema" and statistics.passes < bound.required_passes:
        click.echo(
            "warning: the moving averages have not converged; use --update exact "
            f"or --passes {bound.required_passes}",
            err=True,
        )


def _require_replaceable(out: Path, overwrite: bool) -> None:
    """Refuse an existing OUT, unless --overwrite is given and it holds statistics."""
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
