"""Progress on stderr: a bar with the time left on a terminal, a line now and then where there is none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import click

from .common_options import quiet
from .console import stderr_console

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as Bars

SECONDS_BETWEEN_LINES = 30.0
SECONDS_WITHOUT_TOTAL = 1.0
"""Work of unknown length is shown once it takes longer than this."""


class Progress(Protocol):
    """What work reports to."""

    def __call__(self, done: int, total: int) -> None:
        """Some work is finished. The total may change on the way; 0 says that it is unknown."""

    def note(self, text: str) -> None:
        """Something to read beside the numbers, e.g. the last loss."""


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """Show how far some work has come, and how long the rest will take. May be nested."""
    console = stderr_console()
    if quiet():
        yield _Silence()
    elif console.is_terminal:
        with _bars(console) as bars:
            bar = _Bar(bars, what)
            try:
                yield bar
            finally:
                bar.finish()
    else:
        lines = ProgressLines(what)
        yield lines
        lines.finish()


class _Silence:
    def __call__(self, done: int, total: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass


_running: list[Bars] = []


@contextlib.contextmanager
def _bars(console: Console) -> Iterator[Bars]:
    """Give the display that is on the screen, for there can be only one, or start it."""
    if _running:
        yield _running[-1]
        return
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    class OnlyWhatTellsSomething(Bars):
        """Leaves out work that is over before its length is known."""

        def get_renderables(self) -> Iterator[RenderableType]:
            tasks = [t for t in self.tasks if t.total or (t.elapsed or 0) > SECONDS_WITHOUT_TOTAL]
            if tasks:
                yield self.make_tasks_table(tasks)

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[counted]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    )
    with OnlyWhatTellsSomething(*columns, console=console) as bars:
        _running.append(bars)
        try:
            yield bars
        finally:
            _running.pop()


class _Bar:
    def __init__(self, bars: Bars, what: str) -> None:
        self._bars = bars
        self._task = bars.add_task(what, total=None, counted="", note="")
        self._known = False

    def __call__(self, done: int, total: int) -> None:
        if total > 0:
            self._known = True
            self._bars.update(self._task, completed=done, total=total, counted=f"{done}/{total}")

    def note(self, text: str) -> None:
        self._bars.update(self._task, note=text)

    def finish(self) -> None:
        """Take a bar that never learnt its length off the screen."""
        if not self._known:
            self._bars.remove_task(self._task)


class ProgressLines:
    """Progress for log files: a line every 30 seconds, and one at the end of work that had any.

    write, clock: where lines go and what time it is.
    """

    def __init__(
        self,
        what: str,
        *,
        write: Callable[[str], None] = lambda line: click.echo(line, err=True),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._write = write
        self._clock = clock
        self._started = self._last = clock()
        self._done = self._total = 0
        # Work that is taken up again begins at what was done before, which says nothing of its speed.
        self._first: int | None = None
        self._note = ""

    def __call__(self, done: int, total: int) -> None:
        """Note how far the work has come and say so if it is time to."""
        self._done, self._total = done, total
        if self._first is None:
            self._first = done
        now = self._clock()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            self._write(self._line(now))

    def note(self, text: str) -> None:
        """Add something to the lines to come."""
        self._note = f", {text}"

    def finish(self) -> None:
        """Say how long it took, if anything was said before."""
        if self._last > self._started:
            seconds = human_seconds(self._clock() - self._started)
            self._write(f"{self._what}: {self._done}/{self._total}, took {seconds}{self._note}")

    def _line(self, now: float) -> str:
        line = f"{self._what}: {self._done}/{self._total}"
        if self._total > 0:
            line += f" ({100 * self._done / self._total:.0f} %)"
        rate = (self._done - (self._first or 0)) / (now - self._started)
        if rate <= 0:
            return line + self._note
        left = human_seconds(max(self._total - self._done, 0) / rate)
        return f"{line}, {rate:.3g}/s, {left} left{self._note}"


def human_seconds(seconds: float) -> str:
    """Return a time as people say it: ``40 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
