"""Several processes of ``lpld-labels train``: starting them, and letting one of them speak for all."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from lpld_labels.errors import LabelPoolError, WorkerDiedError

if TYPE_CHECKING:
    from lpld_core.train.ranks import Ranks

_LAUNCHER = "LPLD_LAUNCHER"
"""Set for processes that `start_ranks` has started: it says what becomes of them."""
_PEER_GONE = 75
"""Exit code of a process that says nothing because it was another one that went; sysexits' "try again"."""
_PATIENCE = 2.0
"""Seconds that such a process waits, so that the launcher sees, and hears, the other one first."""
_MOST_PATIENCE = 60.0
"""Seconds that a process at most waits for the first of its machine to say what is wrong with the command."""
_chosen = False
"""Whether this is the process that says how the run ended."""


class SpokenOnce(click.Command):
    """A command that a launcher may start several times: what all find wrong with it is said by one."""

    def make_context(self, *given: Any, **options: Any) -> click.Context:
        with _left_to_the_first():
            return super().make_context(*given, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _left_to_the_first():
            return super().invoke(ctx)


@contextlib.contextmanager
def _left_to_the_first() -> Iterator[None]:
    """Let only the first process of a machine tell errors, unless another was chosen to (`one_voice`)."""
    try:
        yield
    except (LabelPoolError, click.ClickException) as error:
        if not _chosen and "RANK" in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
            # The launcher ends this one with the first. Would this one end before, the first could not speak.
            time.sleep(_MOST_PATIENCE)
            _leave(error.exit_code if isinstance(error, click.ClickException) else 1)
        raise


def start_ranks(processes: int, out: Path) -> None:
    """Run this very command as several processes on this machine, as torchrun does, until all are done."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from lpld_core.train.ranks import GO_ON

    os.environ[_LAUNCHER] = str(os.getpid())
    # One thread each unless `--threads` says otherwise, which torch then follows.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    # What there is to say of a failure is said below, in one line.
    logging.disable()
    try:
        elastic_launch(config, sys.executable)("-m", "lpld_cli", *sys.argv[1:])
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            # The first process has said what is to be said.
            sys.exit(130)
        raise _stopped(error.sigval) from None
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        if said := [code for code in codes.values() if code > 0 and code != _PEER_GONE]:
            # That process has said itself what is wrong.
            sys.exit(said[0])
        raise WorkerDiedError(_how_one_died(codes, processes), where=out, hint=GO_ON) from None


def _how_one_died(codes: dict[int, int], processes: int) -> str:
    """Say which process went. codes: by rank, of all that had ended when the launcher looked.

    Times are whole seconds and do not tell who went first: those that missed another have ended too.
    """
    for rank, code in sorted(codes.items()):
        if code < 0:
            return f"process {rank} of {processes} was killed by {signal.Signals(-code).name}"
    return "a process of this training run is gone or does not answer"


@contextlib.contextmanager
def one_voice(ranks: Ranks) -> Iterator[None]:
    """Let one of the processes say how the run ended, and others leave without a word."""
    if ranks.world == 1:
        yield
        return
    from lpld_labels.loader.orphans import watch_parent

    # A killed launcher leaves its processes behind: they would go on for nobody and keep the run locked.
    watch_parent(0)
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, _asked_to_stop)
    try:
        yield
    except WorkerDiedError:
        if _LAUNCHER in os.environ:
            _make_way()
        _speak_or_leave(ranks)
        raise
    except KeyboardInterrupt:
        if not ranks.first:
            _leave(130)
        raise
    except (LabelPoolError, click.ClickException):
        _speak_or_leave(ranks)
        raise


def _speak_or_leave(ranks: Ranks) -> None:
    global _chosen  # noqa: PLW0603  # of the process
    if not ranks.speaks():
        _leave(1)
    _chosen = True


def _asked_to_stop(number: int, frame: object) -> NoReturn:
    del frame
    raise _stopped(number)


def _stopped(number: int) -> WorkerDiedError:
    name = signal.Signals(number).name
    return WorkerDiedError(f"asked to stop ({name})", hint="run the same command again: it goes on from here")


def _make_way() -> NoReturn:
    """End after the process that caused it, or when the launcher asks, whichever comes first."""
    with contextlib.suppress(ValueError):  # not in the main thread
        # The launcher's own signal must not look like what ended the run.
        signal.signal(signal.SIGTERM, lambda *_: _leave(_PEER_GONE))
    time.sleep(_PATIENCE)
    _leave(_PEER_GONE)


def _leave(code: int) -> NoReturn:
    """End at once: what other processes are waiting for here will never come."""
    sys.stderr.flush()
    os._exit(code)
