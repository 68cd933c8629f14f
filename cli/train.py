"""``lpld-labels train``: train a student from a pool, in one process or several (torchrun)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import click

from lpld_core.verbs import TrainCall, require_trainable, train, train_defaults, train_in
from lpld_labels.errors import LabelPoolError, WorkerDiedError

from .console import note, says_if_stopped, show
from .options import FILE, verb_command

if TYPE_CHECKING:
    from lpld_core.train.ranks import Ranks

_MOST_SECONDS = 60.0
"""How long a process waits for the first process of its machine to report an error."""
_chosen = False
"""Whether `one_report` has chosen this process to report errors."""


class ReportOnce(click.Command):
    """A command that torchrun runs in several processes. An error that all of them raise is shown once."""

    def make_context(self, *given: Any, **options: Any) -> click.Context:
        with _first_reports():
            return super().make_context(*given, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _first_reports():
            return super().invoke(ctx)


@contextlib.contextmanager
def _first_reports() -> Iterator[None]:
    """Let only the first process of a machine report errors, unless `one_report` chose a different one."""
    try:
        yield
    except (LabelPoolError, click.ClickException) as error:
        if not _chosen and "RANK" in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
            # When a process ends, the launcher stops all others. So let the reporting process end first.
            time.sleep(_MOST_SECONDS)
            _leave(error.exit_code if isinstance(error, click.ClickException) else 1)
        raise


@contextlib.contextmanager
def one_report(ranks: Ranks) -> Iterator[None]:
    """Let one process report an error; the others exit silently."""
    if ranks.world == 1:
        yield
        return
    from lpld_labels.loader.workers import watch_parent

    # Otherwise the processes of a killed launcher would continue and keep the run locked.
    watch_parent(0)
    with contextlib.suppress(ValueError):  # raised outside the main thread
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
    """Exit at once, without a cleanup that could wait for other processes."""
    sys.stderr.flush()
    os._exit(code)


@verb_command("train", train, types={"out": FILE}, usual=train_defaults({}), cls=ReportOnce)
def command(pool: str, as_json: bool, **given: Any) -> None:
    """\b
    Examples:
      lpld-labels train pools/in1k_40x --images syn/in1k_ipc10 --val imagenet/val --device cuda
      lpld-labels train pools/tiny --images syn/tiny --val tiny/val --preset tiny
      lpld-labels train pools/plus --images syn/in1k --preset imagenet1k-plus --student mobilenet_v2
      lpld-labels train pools/in1k_10x --images syn/in1k_ipc10 --preset lpqld --ema 0.99
      lpld-labels train pools/in1k_40x --images syn/in1k_ipc10 --phases soft:50,hard:200,soft:50
      lpld-labels train pools/in1k --images syn/in1k_ipc10 --sampling epoch-by-epoch
      lpld-labels train pools/in1k --images syn/in1k_ipc10 -b 1024 --accumulate 8
      torchrun --nproc-per-node 8 -m lpld_cli train pools/in1k --images syn/in1k_ipc10 --device cuda
      lpld-labels train pools/in1k_40x_packed --val imagenet/val
    """
    call = TrainCall(pool=pool, **train_defaults(given) | given)
    require_trainable(call)
    from lpld_core.train.ranks import joined_ranks

    with says_if_stopped(call.place), joined_ranks(call.device) as ranks, one_report(ranks):
        result = train_in(call, ranks)
    if not ranks.first:
        return
    if result.resumed_from == call.epochs:
        note(f"{call.place}: finished before, nothing was left to do")
    show("Student", result.as_json(), as_json=as_json)
