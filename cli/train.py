"""``lpld-labels train``: train a student from a pool."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_core.train.settings import TrainSettings, preset_named

from .common import (
    FILE,
    FOLDER,
    json_option,
    look_over,
    overwrite_option,
    pool_argument,
    preset_option,
    quiet,
    says_if_stopped,
)
from .console import show
from .groups import THREADS, check_device
from .options import settings_options, take
from .progress import progress_bar
from .ranks import ReportOnce, one_voice

if TYPE_CHECKING:
    from lpld_core.train.evaluate import Accuracy
    from lpld_core.train.ranks import Ranks
    from lpld_core.train.student import TrainResult
    from lpld_core.train.trainer import EpochProgress


@click.command("train", cls=ReportOnce)
@pool_argument
@click.option(
    "--images", type=FOLDER, help="The labelled image folder; not needed if POOL carries its images."
)
@click.option("--val", type=FOLDER, help="Image folder to measure accuracy on.")
@click.option(
    "--val-by-order",
    is_flag=True,
    help="The class folders of --val may have other names: they come in the same order.",
)
@click.option("--out", type=FILE, help="Directory of the run [default: POOL's name + -student].")
@preset_option(without="imagenet1k with --sampling shuffled")
@settings_options(TrainSettings, preset=preset_named(None).train)
@click.option("--threads", type=click.IntRange(1), help=THREADS)
@overwrite_option
@json_option("text")
def command(
    pool: str,
    images: Path | None,
    val: Path | None,
    val_by_order: bool,
    out: Path | None,
    preset: str | None,
    threads: int | None,
    overwrite: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Train a student from POOL and the images it labels.

    Label batches are drawn from the pool until the step budget is used, however few it holds. Run
    the same command again after a crash: it resumes from its last save and ends with the same weights.
    The run's directory gets log.jsonl, checkpoint.safetensors and student.safetensors.

    A temperature that falls (--temperature-schedule, preset lpqld) needs labels that serve every
    temperature: all logits (f16, int8) or klt. Top-k labels serve low temperatures only.

    Several processes (torchrun) share the rows of every step: --batch-size counts them all, and a run may
    resume with another number of processes. BatchNorm sees a process's own rows.

    \b
    Examples:
      lpld-labels train pools/in1k_40x --images syn/in1k_ipc10 --val imagenet/val --device cuda
      lpld-labels train pools/tiny --images syn/tiny --val tiny/val --preset tiny
      lpld-labels train pools/plus --images syn/in1k --preset imagenet1k-plus --student mobilenet_v2
      lpld-labels train pools/in1k_10x --images syn/in1k_ipc10 --preset lpqld --ema 0.99
      lpld-labels train pools/in1k --images syn/in1k_ipc10 --sampling epoch-by-epoch
      lpld-labels train pools/in1k --images syn/in1k_ipc10 -b 1024 --accumulate 8
      torchrun --nproc-per-node 8 -m lpld_cli train pools/in1k --images syn/in1k_ipc10 --device cuda
      lpld-labels train pools/in1k_40x_packed --val imagenet/val
    """
    if val_by_order and val is None:
        raise click.UsageError("--val-by-order goes with --val")
    from lpld_core.train.ranks import joined_ranks, threads_of_a_rank
    from lpld_labels.io.addresses import redact
    from lpld_labels.transforms.outputs import require_apart

    if given["workers"] is None and given["device"] not in (None, "cpu"):
        given["workers"] = min(8, os.cpu_count() or 1)
    settings = take(TrainSettings, given, base=preset_named(preset).train)
    check_device(settings.device)
    # Neither a query nor a password becomes the name of a directory.
    out = out or Path(f"{Path(redact(pool).partition('?')[0].rstrip('/')).name}-student")
    inputs = [pool, *(str(folder) for folder in (images, val) if folder is not None)]
    require_apart(out, *inputs)
    if settings.image_cache is not None:
        require_apart(settings.image_cache, out, *inputs)
    import torch

    torch.set_num_threads(threads_of_a_rank(threads))
    with says_if_stopped(out), joined_ranks(settings.device) as ranks, one_voice(ranks):
        result = _train(pool, images, val, val_by_order, out, settings, overwrite=overwrite, ranks=ranks)
    if ranks.first:
        if result.resumed_from == settings.epochs and not quiet():
            click.echo(f"{out}: finished before, nothing was left to do", err=True)
        accuracy = result.accuracy
        facts = {
            "weights": str(result.weights),
            "steps": result.steps,
            "resumed_from_epoch": result.resumed_from,
            "top1": accuracy and accuracy.top1,
            "top5": accuracy and accuracy.top5,
        }
        show("Student", facts, as_json=as_json)


def _train(
    pool: str,
    images: Path | None,
    val: Path | None,
    val_by_order: bool,
    out: Path,
    settings: TrainSettings,
    *,
    overwrite: bool,
    ranks: Ranks,
) -> TrainResult:
    from lpld_core.train.evaluate import ValidationSet
    from lpld_core.train.student import train_student
    from lpld_labels.pool.reader import PoolReader

    hidden = not ranks.first
    with PoolReader(pool) as reader:
        augmentation = reader.header.augmentation
        size = (augmentation.output_height, augmentation.output_width)
        validation = None
        if val is not None:
            if ranks.first:
                look_over(val)
            validation = ValidationSet(val, size=size, by_order=val_by_order)
        with (
            progress_bar("checking images", hidden=hidden) as checked,
            progress_bar("training steps", hidden=hidden) as progress,
        ):

            def watch(epoch: EpochProgress, accuracy: Accuracy | None) -> None:
                score = "" if accuracy is None else f", top-1 {accuracy.top1:.1%}"
                progress.note(f"loss {epoch.loss:.4g}, lr {epoch.learning_rate:.3g}{score}")

            return train_student(
                reader,
                images,
                out,
                settings,
                validation=validation,
                progress=progress,
                watch=watch,
                check_progress=checked,
                overwrite=overwrite,
                ranks=ranks,
            )
