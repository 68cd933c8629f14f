"""Progress on stderr: a bar with the time left on a terminal, a line every 30 seconds elsewhere, or JSON."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from .console import progress_as_json, quiet, stderr_console

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from lpld_labels.exec.job import TaskCounts

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_JSON_LINES = 1.0
SECONDS_BETWEEN_TICKS = 1.0
SECONDS_WITHOUT_TOTAL = 1.0


class Progress:
    """Receives progress reports. This class shows nothing."""

    def __call__(self, done: int, total: int) -> None:
        """Report finished work. The total may change; 0 means unknown."""

    def note(self, text: str) -> None:
        """Show a text beside the numbers, e.g. the last loss."""

    def tasks(self, counts: TaskCounts) -> None:
        """Show the number of running, finished and retried tasks, unless there is only one task."""
        if counts.running + counts.done >= 2:
            retried = f", {counts.retried} retried" if counts.retried else ""
            self.note(f"tasks: {counts.running} running, {counts.done} done{retried}")


@contextlib.contextmanager
def progress_bar(what: str, *, hidden: bool = False) -> Iterator[Progress]:
    """Show the progress of some work and the time left. Can be nested. hidden: show nothing."""
    if hidden or (quiet() and not progress_as_json()):
        yield Progress()
    elif not progress_as_json() and stderr_console().is_terminal:
        with _display() as bars:
            bar = _Bar(bars, what)
            yield bar
            if not bar.known:
                bars.remove_task(bar.task)
    else:
        lines = ProgressLines(what, as_json=progress_as_json())
        with _ticking(lines.write_if_due):
            yield lines
        lines.finish()


@contextlib.contextmanager
def _ticking(act: Callable[[], None]) -> Iterator[None]:
    """Call a function every second, for work that seldom reports progress (a fit, a large file)."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(SECONDS_BETWEEN_TICKS):
            act()

    thread = threading.Thread(target=tick, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _display() -> Bars:
    from rich import progress
    from rich.console import ConsoleRenderable
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.3g}/s")

    class Display(progress.Progress):
        """Hides work of unknown length until it has run for a second."""

        def get_renderables(self) -> Iterator[ConsoleRenderable]:
            tasks = [t for t in self.tasks if t.total or (t.elapsed or 0) > SECONDS_WITHOUT_TOTAL]
            if tasks:
                yield self.make_tasks_table(tasks)

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=24),
        progress.TextColumn("{task.fields[counted]}"),
        Rate(),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
        progress.TextColumn("{task.fields[note]}"),
    )
    return Display(*columns, console=stderr_console())


class _Bar(Progress):
    def __init__(self, bars: Bars, what: str) -> None:
        self.bars, self.known = bars, False
        self.task = bars.add_task(what, total=None, counted="", note="")

    def __call__(self, done: int, total: int) -> None:
        if total > 0:
            self.known = True
            self.bars.update(self.task, completed=done, total=total, counted=f"{done}/{total}")

    def note(self, text: str) -> None:
        self.bars.update(self.task, note=text)


class ProgressLines(Progress):
    """Progress in lines: text every 30 seconds (none for shorter work), or JSON every second."""

    def __init__(
        self,
        what: str,
        *,
        as_json: bool = False,
        write: Callable[[str], None] = lambda line: click.echo(line, err=True),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._as_json, self._write, self._clock = what, as_json, write, clock
        self._started = clock()
        self._due = self._started + (0.0 if as_json else SECONDS_BETWEEN_LINES)
        self._done = self._total = 0
        self._first: int | None = None
        self._note: str | None = None
        self._counts: TaskCounts | None = None
        self._ended: float | None = None
        self._wrote = False

    def __call__(self, done: int, total: int) -> None:
        if self._first is None:
            # A resumed job starts with work done before, which must not count towards its rate.
            self._first = done
        self._done, self._total = done, total
        self.write_if_due()
        self._ended = (self._ended or self._clock()) if done >= total > 0 else None

    def note(self, text: str) -> None:
        self._note = text

    def tasks(self, counts: TaskCounts) -> None:
        self._counts = counts
        if not self._as_json:
            super().tasks(counts)

    def write_if_due(self) -> None:
        """Write a line if one is due and the work is not finished."""
        now = self._clock()
        if now >= self._due and self._ended is None:
            self._due = now + (SECONDS_BETWEEN_JSON_LINES if self._as_json else SECONDS_BETWEEN_LINES)
            self._wrote = True
            self._write(self._json(finished=False) if self._as_json else self._text(now))

    def finish(self) -> None:
        """Write the last line; text only if there was a line before."""
        if self._as_json:
            self._write(self._json(finished=True))
        elif self._wrote:
            counted = f" {self._done}/{self._total}," if self._total > 0 else ""
            seconds = human_seconds((self._ended or self._clock()) - self._started)
            self._write(f"{self._what}:{counted} took {seconds}{self._noted()}")

    def _noted(self) -> str:
        return f", {self._note}" if self._note else ""

    def _pace(self, now: float) -> tuple[float, float | None]:
        """Return the rate, and the seconds left if known."""
        rate = (self._done - (self._first or 0)) / max(now - self._started, 1e-9)
        return rate, max(self._total - self._done, 0) / rate if rate > 0 and self._total else None

    def _text(self, now: float) -> str:
        if self._total <= 0:
            return f"{self._what}: started {human_seconds(now - self._started)} ago{self._noted()}"
        line = f"{self._what}: {self._done}/{self._total} ({100 * self._done / self._total:.0f} %)"
        rate, left = self._pace(now)
        if left is not None:
            line += f", {rate:.3g}/s, {human_seconds(left)} left"
        return line + self._noted()

    def _json(self, *, finished: bool) -> str:
        rate, left = self._pace(self._ended or self._clock())
        line = {
            "progress": self._what,
            "done": self._done,
            "total": self._total or None,
            "per_second": round(rate, 3) if rate > 0 else None,
            "seconds_left": None if left is None else round(left, 1),
            "tasks": None if self._counts is None else asdict(self._counts),
            "note": self._note,
            "finished": finished,
        }
        return json.dumps(line)


def human_seconds(seconds: float) -> str:
    """Return a rounded time, e.g. ``40 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
