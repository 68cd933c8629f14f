"""``lpld-labels train``: train a student from a pool."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_core.training.presets import (
    DEFAULT_PRESET,
    LOSSES,
    OPTIMIZERS,
    PRESETS,
    SCHEDULES,
    TrainRecipe,
    preset_named,
)

from .console import output, print_json
from .progress import progress_bar
from .teacher_options import check_device, image_cache_option, machine_options

if TYPE_CHECKING:
    from lpld_core.training.student import TrainResult

SAMPLING = ("batches", "epochs", "epoch-by-epoch", "shuffled", "stored")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line said; None where the preset or the pool decides."""

    pool: str
    images: Path
    val: Path | None
    out: Path | None
    student: str | None
    preset: str
    epochs: int | None
    loss: str | None
    temperature: float | None
    t2: bool | None
    gamma: float | None
    label_smoothing: float | None
    optimizer: str | None
    lr: float | None
    weight_decay: float | None
    momentum: float | None
    schedule: str | None
    warm_up_epochs: float | None
    warm_up_from: float | None
    sampling: str
    seed: int
    evaluate_every: int
    save_every: int
    device: str
    amp: bool
    threads: int | None
    workers: int | None
    image_cache: Path | None
    as_json: bool


@click.command("train")
@click.argument("pool")
@click.option("--images", type=click.Path(path_type=Path), required=True, help="The labelled image folder.")
@click.option("--val", type=click.Path(path_type=Path), help="Image folder to measure accuracy on.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Directory of the run [default: POOL's name + -student]."
)
@click.option("--student", metavar="NAME", help="Network name, as for --teacher [default: ResNet-18].")
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    default=DEFAULT_PRESET,
    show_default=True,
    help="Settings of a published experiment; the options below replace parts of it.",
)
@click.option("--epochs", type=click.IntRange(1), help="Step budget, in passes over the images.")
@click.option("--loss", type=click.Choice(LOSSES), help="kl, or squared error of logits + ground truth.")
@click.option("--temperature", type=click.FloatRange(0, min_open=True), help="Of the kl loss.")
@click.option("--t2/--no-t2", default=None, help="Multiply the kl loss by the temperature squared.")
@click.option("--gamma", type=click.FloatRange(0), help="Weight of the ground truth in mse+gt.")
@click.option("--label-smoothing", type=click.FloatRange(0, 1, max_open=True), help="Share spread evenly.")
@click.option("--optimizer", type=click.Choice(OPTIMIZERS))
@click.option("--lr", type=click.FloatRange(0, min_open=True), help="Learning rate at its highest.")
@click.option("--weight-decay", type=click.FloatRange(0))
@click.option("--momentum", type=click.FloatRange(0, 1, max_open=True), help="Of SGD.")
@click.option("--schedule", type=click.Choice(SCHEDULES), help="How the learning rate falls.")
@click.option("--warm-up-epochs", type=click.FloatRange(0), help="Epochs in which it rises linearly.")
@click.option("--warm-up-from", type=click.FloatRange(0, 1), help="Share of the rate to begin with.")
@click.option(
    "--sampling",
    type=click.Choice(SAMPLING),
    default="batches",
    show_default=True,
    help="How label batches are drawn: the paper's is 'batches', with replacement.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--evaluate-every", type=click.IntRange(1), default=10, show_default=True, help="In epochs.")
@click.option("--save-every", type=click.IntRange(1), default=1, show_default=True, help="In epochs.")
@machine_options
@image_cache_option
@click.option(
    "--workers",
    type=click.IntRange(0),
    help="Processes that prepare batches ahead [default: 0 on a CPU, which training keeps busy itself].",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(**given: Any) -> None:
    """Train a student from POOL and the images it labels.

    Label batches are drawn from the pool until the step budget is used, however few it holds. Run
    the same command again after a crash: it goes on from the last saved epoch to the same weights.
    The run's directory gets log.jsonl, checkpoint.safetensors and student.safetensors.

    \b
    Examples:
      lpld-labels train pools/in1k_40x --images syn/in1k_ipc10 --val imagenet/val --device cuda
      lpld-labels train pools/tiny --images syn/tiny --val tiny/val --preset tiny
      lpld-labels train pools/plus --images syn/in1k --preset imagenet1k-plus --student mobilenet_v2
      lpld-labels train pools/in1k --images syn/in1k_ipc10 --sampling epoch-by-epoch
    """
    options = Options(**given)
    check_device(options.device)
    out = options.out or Path(f"{Path(options.pool.rstrip('/')).name}-student")
    try:
        result = _train(options, out)
    except KeyboardInterrupt:
        click.echo(f"stopped: the last saved epoch is safe in {out}; run the same command again", err=True)
        raise
    _show(options, result)


def _recipe(options: Options) -> TrainRecipe:
    """Return the preset with what was given explicitly in its place."""
    wishes: dict[str, Any] = {
        "epochs": options.epochs,
        "loss": options.loss,
        "temperature": options.temperature,
        "scale_by_t2": options.t2,
        "gamma": options.gamma,
        "label_smoothing": options.label_smoothing,
        "optimizer": options.optimizer,
        "learning_rate": options.lr,
        "weight_decay": options.weight_decay,
        "momentum": options.momentum,
        "schedule": options.schedule,
        "warm_up_epochs": options.warm_up_epochs,
        "warm_up_from": options.warm_up_from,
    }
    recipe = preset_named(options.preset).train
    return replace(recipe, **{name: value for name, value in wishes.items() if value is not None})


def _train(options: Options, out: Path) -> TrainResult:
    import torch

    from lpld_core.training.evaluate import ValidationSet
    from lpld_core.training.student import TrainJob, train_student
    from lpld_labels.pool.reader import PoolReader

    torch.set_num_threads(options.threads or os.cpu_count() or 1)
    job = TrainJob(
        out=out,
        recipe=_recipe(options),
        student=options.student,
        seed=options.seed,
        sampling=options.sampling,
        evaluate_every=options.evaluate_every,
        save_every=options.save_every,
        image_cache=options.image_cache,
    )
    with PoolReader(options.pool) as pool:
        augmentation = pool.header.augmentation
        size = (augmentation.output_height, augmentation.output_width)
        validation = ValidationSet(options.val, size=size) if options.val else None
        with progress_bar("checking images") as checked, progress_bar("training steps") as progress:
            return train_student(
                pool,
                options.images,
                job,
                validation=validation,
                device=options.device,
                amp=options.amp,
                workers=_workers(options),
                progress=progress,
                check_progress=checked,
            )


def _workers(options: Options) -> int:
    if options.workers is not None:
        return options.workers
    return 0 if options.device == "cpu" else min(8, os.cpu_count() or 1)


def _show(options: Options, result: TrainResult) -> None:
    accuracy = result.accuracy
    if options.as_json:
        print_json(
            {
                "weights": str(result.weights),
                "steps": result.steps,
                "resumed_from_epoch": result.resumed_from,
                "top1": None if accuracy is None else accuracy.top1,
                "top5": None if accuracy is None else accuracy.top5,
            }
        )
        return
    score = "" if accuracy is None else f"top-1 {accuracy.top1:.2%}, top-5 {accuracy.top5:.2%}; "
    output().print(f"{score}{result.steps} steps, student in {result.weights}", highlight=False)
