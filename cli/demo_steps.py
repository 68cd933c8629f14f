"""The demo's work, done quietly and two things at a time; what the commands say goes to a log."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_labels.exec.job import Steps

PROCESSES = 2
Step = Callable[[], None]
"""Prints what it does. Pickled, so a module's function or a partial of one."""
Chain = Sequence[Step]
"""Steps of which each needs the one before."""


class DemoLog:
    """Collects what steps say in one file, each step in one piece."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("")

    def add(self, said: str) -> None:
        """Append what one step said; the step may have failed."""
        with self.path.open("a") as file:
            file.write(said + "\n")


def run_chains(what: str, chains: Sequence[Chain], log: DemoLog) -> float:
    """Run chains side by side behind one bar that counts their steps; return the seconds it took."""
    from lpld_labels.exec.job import Job
    from lpld_labels.exec.local import LocalEngine

    start = time.monotonic()
    total = sum(map(len, chains))
    job = Job(
        start=partial(_start, log),
        tasks=iter(chains),
        name=lambda chain: f"a chain of {len(chain)} steps",
        total=total,
        done=0,
        where=log.path,
    )
    with progress_bar(what) as progress:
        progress(0, total)
        LocalEngine(PROCESSES).run(job, progress)
    return time.monotonic() - start


def run_step(step: Step, log: DemoLog) -> None:
    """Run one step in this process."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            step()
    finally:
        log.add(said.getvalue())


def run_command(*words: object) -> None:
    """Run one of our own commands and say which."""
    from .main import group

    arguments = [str(word) for word in words]
    print(f"$ lpld-labels {' '.join(arguments)}", flush=True)  # noqa: T201
    group.main(arguments, standalone_mode=False)


def _start(log: DemoLog, number: int) -> _Runner:
    """Set up a process: the networks are so small that a second thread would mostly wait for the first."""
    import torch

    del number
    torch.set_num_threads(1)
    return _Runner(log)


@dataclass(frozen=True)
class _Runner:
    """Runs chains in a process of its own."""

    log: DemoLog

    def do(self, task: Chain, *, again: bool) -> Steps:
        """Run the steps of a chain, one after the other."""
        del again
        for step in task:
            run_step(step, self.log)
            yield 1
