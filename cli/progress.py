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

from .common import progress_as_json, quiet
from .console import stderr_console

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from lpld_labels.exec.job import TaskCounts

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_JSON_LINES = 1.0
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_WITHOUT_TOTAL = 1.0
"""Work of unknown length is shown once it takes longer than this."""


class Progress:
    """What work reports to. This class shows nothing."""

    def __call__(self, done: int, total: int) -> None:
        """Some work is finished. The total may change on the way; 0 means that it is unknown."""

    def note(self, text: str) -> None:
        """Show something beside the numbers, e.g. the last loss."""

    def tasks(self, counts: TaskCounts) -> None:
        """Show how many tasks of a job are running, done and retried; nothing of a job that is one task."""
        if counts.running + counts.done >= 2:
            retried = f", {counts.retried} begun again" if counts.retried else ""
            self.note(f"tasks: {counts.running} running, {counts.done} done{retried}")


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """Show how far some work has come, and how long the rest will take. May be nested."""
    if progress_as_json():
        told = ProgressJson(what)
        try:
            yield told
        finally:
            told.say(finished=True)
    elif quiet():
        yield Progress()
    elif stderr_console().is_terminal:
        with _bars() as bars:
            bar = _Bar(bars, what)
            yield bar
            if not bar.known:
                bars.remove_task(bar.task)
    else:
        lines = ProgressLines(what)
        with _regularly(lines.say_if_due):
            yield lines
        lines.finish()


@contextlib.contextmanager
def no_progress(what: str) -> Iterator[Progress]:
    """Show nothing, where another process does."""
    del what
    yield Progress()


@contextlib.contextmanager
def _regularly(act: Callable[[], None]) -> Iterator[None]:
    """Call something every second meanwhile, for work that reports nothing for long (a fit, a large file)."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(SECONDS_BETWEEN_LOOKS):
            act()

    ticking = threading.Thread(target=tick, name="progress", daemon=True)
    ticking.start()
    try:
        yield
    finally:
        over.set()
        ticking.join()


_running: list[Bars] = []
"""The display that is on the screen: there can be only one."""


@contextlib.contextmanager
def _bars() -> Iterator[Bars]:
    if _running:
        yield _running[-1]
        return
    from rich import progress
    from rich.console import ConsoleRenderable
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        """How much is done in a second."""

        def render(self, task: progress.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.3g}/s")

    class Display(progress.Progress):
        """Leaves out work that is over before its length is known."""

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
    with Display(*columns, console=stderr_console()) as bars:
        _running.append(bars)
        try:
            yield bars
        finally:
            _running.pop()


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


class _Told(Progress):
    """Progress in lines. write, clock: where lines go and what time it is."""

    def __init__(
        self,
        what: str,
        *,
        write: Callable[[str], None] = lambda line: click.echo(line, err=True),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._write, self._clock = what, write, clock
        self._started = clock()
        self._done = self._total = 0
        self._first: int | None = None
        self._note: str | None = None

    def _count(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        if self._first is None:
            # Resumed work begins at what was done before, which says nothing of its speed.
            self._first = done

    def _rate(self, now: float) -> float:
        return (self._done - (self._first or 0)) / max(now - self._started, 1e-9)

    def note(self, text: str) -> None:
        self._note = text


class ProgressLines(_Told):
    """Progress for log files: a line every 30 seconds, and one at the end of work that had any."""

    _last: float | None = None
    # Work that is over has nothing more to say while other work of the same command goes on.
    _over: float | None = None

    def __call__(self, done: int, total: int) -> None:
        self._count(done, total)
        self.say_if_due()
        over = done >= total > 0
        self._over = (self._over or self._clock()) if over else None

    def say_if_due(self) -> None:
        """Write a line if it is time to, also when nothing was reported for long."""
        now = self._clock()
        due = now - (self._last or self._started) >= SECONDS_BETWEEN_LINES
        if due and self._over is None:
            self._last = now
            self._write(self._line(now))

    def finish(self) -> None:
        """Say how long it took, if anything was said before."""
        if self._last is not None:
            seconds = human_seconds((self._over or self._clock()) - self._started)
            counted = f" {self._done}/{self._total}," if self._total > 0 else ""
            self._write(f"{self._what}:{counted} took {seconds}{self._noted}")

    @property
    def _noted(self) -> str:
        return f", {self._note}" if self._note else ""

    def _line(self, now: float) -> str:
        if self._total <= 0:
            return f"{self._what}: begun {human_seconds(now - self._started)} ago{self._noted}"
        line = f"{self._what}: {self._done}/{self._total} ({100 * self._done / self._total:.0f} %)"
        rate = self._rate(now)
        if rate > 0:
            left = human_seconds(max(self._total - self._done, 0) / rate)
            line += f", {rate:.3g}/s, {left} left"
        return line + self._noted


class ProgressJson(_Told):
    """Progress for programs (--progress json): a line of JSON every second, and one at the end."""

    _counts: TaskCounts | None = None
    _due = 0.0

    def __call__(self, done: int, total: int) -> None:
        self._count(done, total)
        self._say_if_due()

    def tasks(self, counts: TaskCounts) -> None:
        self._counts = counts
        self._say_if_due()

    def _say_if_due(self) -> None:
        if self._clock() >= self._due:
            self._due = self._clock() + SECONDS_BETWEEN_JSON_LINES
            self.say(finished=False)

    def say(self, *, finished: bool) -> None:
        """Write a line."""
        rate = self._rate(self._clock())
        left = max(self._total - self._done, 0) / rate if rate > 0 and self._total else None
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
        self._write(json.dumps(line))


def human_seconds(seconds: float) -> str:
    """Return a time as people say it: ``40 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
