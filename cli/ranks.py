"""Several processes of ``lpld-labels train`` (torchrun): only one of them reports errors."""

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

_MOST_SECONDS = 60.0
"""How long a process waits for the first process of its machine to report what is wrong with the command."""
_chosen = False
"""Whether this process reports how the run ended."""


class ReportOnce(click.Command):
    """A command that a launcher may start several times: errors that all processes find are reported once."""

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
            # The launcher stops all processes when one ends: if this one ended first, nothing would be said.
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
