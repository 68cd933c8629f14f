"""``lpld-labels train``: train a student from a pool, in one process or several (torchrun)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from lpld_core.train.settings import TrainSettings, preset_named
from lpld_labels.errors import LabelPoolError, WorkerDiedError

from .console import look_over, note, says_if_stopped, show
from .groups import THREADS, check_device
from .options import (
    FILE,
    FOLDER,
    json_option,
    overwrite_option,
    pool_argument,
    preset_option,
    settings_options,
    take,
)
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_core.train.evaluate import Accuracy
    from lpld_core.train.ranks import Ranks
    from lpld_core.train.trainer import EpochProgress

_MOST_SECONDS = 60.0
"""How long a process waits for the first process of its machine to report an error."""
_chosen = False
"""Whether `one_voice` has chosen this process to report how the run ended."""


class ReportOnce(click.Command):
    """A command that torchrun starts in several processes: errors common to all are shown once."""

    def make_context(self, *given: Any, **options: Any) -> click.Context:
        with _first_reports():
            return super().make_context(*given, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _first_reports():
            return super().invoke(ctx)


@contextlib.contextmanager
def _first_reports() -> Iterator[None]:
    """Let the first process of a machine report errors, unless `one_voice` chose another."""
    try:
        yield
    except (LabelPoolError, click.ClickException) as error:
        if not _chosen and "RANK" in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
            # The launcher stops all processes when one ends: if this ended first, no error would be shown.
            time.sleep(_MOST_SECONDS)
            _leave(error.exit_code if isinstance(error, click.ClickException) else 1)
        raise


@contextlib.contextmanager
def one_voice(ranks: Ranks) -> Iterator[None]:
    """Let one process report how the run ended; the others exit silently."""
    if ranks.world == 1:
        yield
        return
    from lpld_labels.loader.workers import watch_parent

    # Processes of a killed launcher would continue and keep the run locked.
    watch_parent(0)
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    except KeyboardInterrupt:
        if not ranks.first:
            _leave(130)
        raise
    except (LabelPoolError, click.ClickException):
        global _chosen  # noqa: PLW0603  # of the process
        if not ranks.speaks():
            _leave(1)
        _chosen = True
        raise


def _stop(number: int, frame: object) -> NoReturn:
    del frame
    name = signal.Signals(number).name
    raise WorkerDiedError(f"asked to stop ({name})", hint="run the same command again to resume")


def _leave(code: int) -> NoReturn:
    """Exit at once: other processes wait for work that will not come."""
    sys.stderr.flush()
    os._exit(code)


@click.command("train", cls=ReportOnce)
@pool_argument
@click.option(
    "--images", type=FOLDER, help="The labelled image folder; not needed if POOL carries its images."
)
@click.option("--val", type=FOLDER, help="Image folder to measure accuracy on.")
@click.option(
    "--val-by-order", is_flag=True, help="Match the class folders of --val by order instead of by name."
)
@click.option("--out", type=FILE, help="Directory of the run.  [default: POOL's name + -student]")
@preset_option(without="imagenet1k with --sampling shuffled")
@settings_options(TrainSettings, preset=preset_named(None).train)
@click.option("--threads", type=click.IntRange(1), help=THREADS)
@overwrite_option
@json_option
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

    The number of steps does not depend on the pool's size: label batches of a small pool are used more often.
    Run the same command again after a crash: it resumes from the last checkpoint and ends with the same
    weights. The run's directory gets log.jsonl, checkpoint.safetensors and student.safetensors.

    A temperature that falls (--temperature-schedule, preset lpqld) needs labels that serve every
    temperature: all logits (f16, int8) or klt. Top-k labels serve low temperatures only.

    Several processes (torchrun) share the rows of every step: --batch-size is their total, and a run may
    resume with another number of processes. BatchNorm sees only a process's own rows.

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
    import torch

    from lpld_core.train.evaluate import ValidationSet
    from lpld_core.train.ranks import joined_ranks, threads_of_a_rank
    from lpld_core.train.student import train_student
    from lpld_labels.io.addresses import redact
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.transforms.outputs import require_apart

    if given["workers"] is None and given["device"] not in (None, "cpu"):
        given["workers"] = min(8, os.cpu_count() or 1)
    settings = take(TrainSettings, given, base=preset_named(preset).train)
    check_device(settings.device)
    # Neither a query nor a password becomes the name of a directory.
    out = out or Path(f"{Path(redact(pool).partition('?')[0].rstrip('/')).name}-student")
    inputs = [pool, *map(str, filter(None, [images, val]))]
    require_apart(out, *inputs)
    if settings.image_cache is not None:
        require_apart(settings.image_cache, out, *inputs)
    torch.set_num_threads(threads_of_a_rank(threads))
    with (
        says_if_stopped(out),
        joined_ranks(settings.device) as ranks,
        one_voice(ranks),
        PoolReader(pool) as reader,
    ):
        validation = None
        if val is not None:
            if ranks.first:
                look_over(val)
            views = reader.header.augmentation
            size = (views.output_height, views.output_width)
            validation = ValidationSet(val, size=size, by_order=val_by_order)
        hidden = not ranks.first
        with (
            progress_bar("checking images", hidden=hidden) as checked,
            progress_bar("training steps", hidden=hidden) as progress,
        ):

            def watch(epoch: EpochProgress, accuracy: Accuracy | None) -> None:
                score = "" if accuracy is None else f", top-1 {accuracy.top1:.1%}"
                progress.note(f"loss {epoch.loss:.4g}, lr {epoch.learning_rate:.3g}{score}")

            result = train_student(
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
    if not ranks.first:
        return
    if result.resumed_from == settings.epochs:
        note(f"{out}: finished before, nothing was left to do")
    accuracy = result.accuracy
    facts = {
        "weights": str(result.weights),
        "steps": result.steps,
        "resumed_from_epoch": result.resumed_from,
        "top1": accuracy and accuracy.top1,
        "top5": accuracy and accuracy.top5,
    }
    show("Student", facts, as_json=as_json)
