"""Progress on stderr: a bar with the time left on a terminal, a line every 30 seconds elsewhere, or JSON."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lpld_labels.progress import Progress, bar_in, terminal_bars

from .console import progress_as_json, quiet, stderr_console

if TYPE_CHECKING:
    from lpld_labels.exec.job import TaskCounts

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_JSON_LINES = 1.0
SECONDS_BETWEEN_TICKS = 1.0


class CommandProgress(Progress):
    """Shows the progress that verbs report."""

    def stage(self, what: str) -> AbstractContextManager[Progress]:
        return progress_bar(what)


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """Show the progress and remaining time of a stage. Stages can be nested."""
    if quiet() and not progress_as_json():
        yield Progress()
    elif not progress_as_json() and stderr_console().is_terminal:
        with terminal_bars(stderr_console()) as bars, bar_in(bars, what) as bar:
            yield bar
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


class ProgressLines(Progress):
    """Writes progress as lines: text every 30 seconds (none for shorter work), or JSON every second."""

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
            # Work that was done before the job resumed must not count towards the rate.
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
        """Write the last line. Text gets a last line only if an earlier line was written."""
        if self._as_json:
            self._write(self._json(finished=True))
        elif self._wrote:
            counted = f" {self._done}/{self._total}," if self._total > 0 else ""
            seconds = human_seconds((self._ended or self._clock()) - self._started)
            self._write(f"{self._what}:{counted} took {seconds}{self._noted()}")

    def _noted(self) -> str:
        return f", {self._note}" if self._note else ""

    def _pace(self, now: float) -> tuple[float, float | None]:
        """Return the rate per second, and the seconds left (None if unknown)."""
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
