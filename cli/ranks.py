"""Several processes of ``lpld-labels train``: starting them, and letting one of them speak for all."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import click

from lpld_labels.errors import LabelPoolError, WorkerDiedError

if TYPE_CHECKING:
    from lpld_core.train.ranks import Ranks

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


@contextlib.contextmanager
def one_voice(ranks: Ranks) -> Iterator[None]:
    """Let one of the processes say how the run ended, and others leave without a word."""
    if ranks.world == 1:
        yield
        return
    from lpld_labels.loader.workers import watch_parent

    # A killed launcher leaves its processes behind: they would go on for nobody and keep the run locked.
    watch_parent(0)
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, _asked_to_stop)
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


def _asked_to_stop(number: int, frame: object) -> NoReturn:
    del frame
    name = signal.Signals(number).name
    raise WorkerDiedError(f"asked to stop ({name})", hint="run the same command again to resume")


def _leave(code: int) -> NoReturn:
    """End at once: what other processes are waiting for here will never come."""
    sys.stderr.flush()
    os._exit(code)
