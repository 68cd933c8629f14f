"""Progress reports of the verbs: to a function, or as bars on a terminal and in a notebook."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars

    from lpld_labels.exec.job import TaskCounts

SECONDS_WITHOUT_TOTAL = 1.0
SECONDS_BETWEEN_DRAWINGS = 0.2  # In a notebook.


class Progress:
    """Receives progress reports. This class shows nothing."""

    def __call__(self, done: int, total: int) -> None:
        """Report how much work is done. The total may change; a total of 0 means unknown."""

    def note(self, text: str) -> None:
        """Show a text beside the numbers, e.g. the last loss."""

    def tasks(self, counts: TaskCounts) -> None:
        """Show the number of running, finished and retried tasks, unless there is only one task."""
        if counts.running + counts.done >= 2:
            retried = f", {counts.retried} retried" if counts.retried else ""
            self.note(f"tasks: {counts.running} running, {counts.done} done{retried}")

    def stage(self, what: str) -> AbstractContextManager[Progress]:
        """Enter a part of the work, which then reports separately. what: name of the part, in a few words."""
        return contextlib.nullcontext(self)


ShowProgress = Callable[[int, int], None] | bool | None  # A function of (done, total), or True for bars.


def progress_of(show: ShowProgress) -> Progress:
    """Return a `Progress` that calls the function `show`, draws bars (True) or shows nothing."""
    if isinstance(show, Progress):
        return show
    if callable(show):
        return _Function(show)
    return DrawnProgress() if show else Progress()


class _Function(Progress):
    def __init__(self, report: Callable[[int, int], None]) -> None:
        self._report = report

    def __call__(self, done: int, total: int) -> None:
        self._report(done, total)


class DrawnProgress(Progress):
    """Draws a bar for each stage, in a notebook or on stderr."""

    @contextlib.contextmanager
    def stage(self, what: str) -> Iterator[Progress]:
        from rich.console import Console

        console = Console(stderr=True)
        bars = terminal_bars(console)
        if not console.is_jupyter:
            with bars, bar_in(bars, what) as bar:
                yield bar
            return
        import IPython.display

        display: Any = IPython.display.display  # has no types
        # rich's own live display needs ipywidgets and is lost in saved notebooks.
        handle = display(bars, display_id=True)
        with bar_in(bars, what, lambda: handle.update(bars)) as bar:
            yield bar
        handle.update(bars)


def terminal_bars(console: Console) -> Bars:
    """Return a display of bars; enter it as a context manager."""
    from rich import progress
    from rich.console import ConsoleRenderable
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.3g}/s")

    class Display(progress.Progress):
        """A display that hides work of unknown length until the work has run for a second."""

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
    return Display(*columns, console=console)


@contextlib.contextmanager
def bar_in(bars: Bars, what: str, draw: Callable[[], None] | None = None) -> Iterator[Progress]:
    """Yield a new bar of a display. Remove the bar if its total stays unknown. draw: redraws the display."""
    bar = _Bar(bars, what, draw)
    yield bar
    if not bar.known:
        bars.remove_task(bar.task)


class _Bar(Progress):
    def __init__(self, bars: Bars, what: str, draw: Callable[[], None] | None) -> None:
        self.bars, self.known = bars, False
        self.task = bars.add_task(what, total=None, counted="", note="")
        self._draw, self._drawn = draw, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if total > 0:
            self.known = True
            self._update(completed=done, total=total, counted=f"{done}/{total}")

    def note(self, text: str) -> None:
        self._update(note=text)

    def _update(self, **values: Any) -> None:
        self.bars.update(self.task, **values)
        if self._draw is not None and time.monotonic() - self._drawn >= SECONDS_BETWEEN_DRAWINGS:
            self._drawn = time.monotonic()
            self._draw()
