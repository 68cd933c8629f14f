"""Progress on stderr: a bar with the time left on a terminal, a line now and then where there is none.

Programs may ask for lines of JSON instead (`--progress json`), one a second; see `ProgressJson`.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

import click

from .common import progress_as_json, quiet
from .console import stderr_console

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as Bars

    from lpld_labels.exec.job import TaskCounts

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_JSON_LINES = 1.0
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_WITHOUT_TOTAL = 1.0
"""Work of unknown length is shown once it takes longer than this."""


class Progress(Protocol):
    """What work reports to."""

    def __call__(self, done: int, total: int) -> None:
        """Some work is finished. The total may change on the way; 0 says that it is unknown."""

    def note(self, text: str) -> None:
        """Something to read beside the numbers, e.g. the last loss."""

    def tasks(self, counts: TaskCounts) -> None:
        """How many tasks of a job are running, done and begun again."""


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """Show how far some work has come, and how long the rest will take. May be nested."""
    console = stderr_console()
    if progress_as_json():
        told = ProgressJson(what)
        try:
            yield told
        finally:
            told.finish()
    elif quiet():
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
        with _regularly(lines.say_if_due):
            yield lines
        lines.finish()


@contextlib.contextmanager
def no_progress(what: str) -> Iterator[Progress]:
    """Show nothing, where another process does."""
    del what
    yield _Silence()


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


class _Silence:
    def __call__(self, done: int, total: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def tasks(self, counts: TaskCounts) -> None:
        pass


def _in_words(counts: TaskCounts) -> str:
    """Return what is worth saying of tasks; nothing of a job that is one task."""
    if counts.running + counts.done < 2:
        return ""
    words = f"tasks: {counts.running} running, {counts.done} done"
    return f"{words}, {counts.retried} begun again" if counts.retried else words


_running: list[Bars] = []


@contextlib.contextmanager
def _bars(console: Console) -> Iterator[Bars]:
    """Give the display that is on the screen, for there can be only one, or start it."""
    if _running:
        yield _running[-1]
        return
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    class Rate(ProgressColumn):
        """How much is done in a second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.3g}/s")

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
        Rate(),
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

    def tasks(self, counts: TaskCounts) -> None:
        self.note(_in_words(counts))

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
        # Work that is over has nothing more to say while other work of the same command goes on.
        self._over: float | None = None
        self._note = ""
        self._lock = threading.Lock()

    def __call__(self, done: int, total: int) -> None:
        """Note how far the work has come and say so if it is time to."""
        self._done, self._total = done, total
        if self._first is None:
            self._first = done
        self.say_if_due()
        if done < total or total <= 0:
            self._over = None
        elif self._over is None:
            self._over = self._clock()

    def say_if_due(self) -> None:
        """Say how far the work has come if it is time to, also when nothing was noted for long."""
        with self._lock:
            now = self._clock()
            if self._over is None and now - self._last >= SECONDS_BETWEEN_LINES:
                self._last = now
                self._write(self._line(now))

    def note(self, text: str) -> None:
        """Add something to the lines to come."""
        self._note = f", {text}" if text else ""

    def tasks(self, counts: TaskCounts) -> None:
        """Add how many tasks are running, done and begun again."""
        self.note(_in_words(counts))

    def finish(self) -> None:
        """Say how long it took, if anything was said before."""
        if self._last > self._started:
            over = self._clock() if self._over is None else self._over
            seconds = human_seconds(over - self._started)
            counted = f" {self._done}/{self._total}," if self._total > 0 else ""
            self._write(f"{self._what}:{counted} took {seconds}{self._note}")

    def _line(self, now: float) -> str:
        if self._total <= 0:
            return f"{self._what}: begun {human_seconds(now - self._started)} ago{self._note}"
        line = f"{self._what}: {self._done}/{self._total} ({100 * self._done / self._total:.0f} %)"
        rate = (self._done - (self._first or 0)) / (now - self._started)
        if rate <= 0:
            return line + self._note
        left = human_seconds(max(self._total - self._done, 0) / rate)
        return f"{line}, {rate:.3g}/s, {left} left{self._note}"


class ProgressJson:
    """Progress for programs: a line of JSON every second, and one at the end.

    {"progress": what, "done", "total", "per_second", "seconds_left", "tasks": {"running", "done", "retried"},
    "note", "finished"}. Of the rate and the time left null is said while they are not known; of tasks, for
    work that has none.
    """

    def __init__(
        self,
        what: str,
        *,
        write: Callable[[str], None] = lambda line: click.echo(line, err=True),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._said: dict[str, Any] = {"progress": what, "done": 0, "total": None, "tasks": None, "note": None}
        self._write, self._clock = write, clock
        self._last = -SECONDS_BETWEEN_JSON_LINES
        self._first: tuple[int, float] | None = None

    def __call__(self, done: int, total: int) -> None:
        """Note how far the work has come and say so if it is time to."""
        self._said |= {"done": done, "total": total or None}
        if self._first is None:
            self._first = done, self._clock()
        self._say_if_due()

    def note(self, text: str) -> None:
        """Something to read beside the numbers."""
        self._said["note"] = text

    def tasks(self, counts: TaskCounts) -> None:
        """How many tasks are running, done and begun again."""
        self._said["tasks"] = asdict(counts)
        self._say_if_due()

    def finish(self) -> None:
        """Say how it ended."""
        self._say(finished=True)

    def _say_if_due(self) -> None:
        if self._clock() - self._last >= SECONDS_BETWEEN_JSON_LINES:
            self._last = self._clock()
            self._say(finished=False)

    def _say(self, *, finished: bool) -> None:
        rate = left = None
        done, total = self._said["done"], self._said["total"]
        if self._first is not None and done > self._first[0]:
            rate = (done - self._first[0]) / max(self._clock() - self._first[1], 1e-9)
            left = None if total is None else round(max(total - done, 0) / rate, 1)
        rates = {"per_second": None if rate is None else round(rate, 3), "seconds_left": left}
        self._write(json.dumps(self._said | rates | {"finished": finished}))


def human_seconds(seconds: float) -> str:
    """Return a time as people say it: ``40 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
