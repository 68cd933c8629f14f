"""Jobs: work split into tasks, the workers that run them, and their progress.

A task is small to send, any worker can run it, and running it twice does no harm. Workers write results to
the job's output and return only numbers. If a worker, a machine or the caller dies, a later run repeats only
the tasks without complete results.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from lpld_labels.errors import InvalidArgumentError, LabelPoolError, WorkerDiedError

reuse = logging.getLogger("lpld_labels.reuse")  # Logs what resumed and growing jobs reuse. The CLI shows it.

Task = TypeVar("Task")
Task_contra = TypeVar("Task_contra", contravariant=True)

Steps = Generator[int, None, Any]
"""A running task: yields how many units (batches, images) each step finished; returns a small value or None.
Closing it saves the finished work."""


def say_reused(where: object, done: int, total: int, what: str) -> None:
    """Log how much of a job an earlier run has done, if it has done anything."""
    if done:
        reuse.info("%s: resumes, %d of %d %s reused", where, done, total, what)


class Worker(Protocol[Task_contra]):
    """Runs tasks one after the other."""

    def do(self, task: Task_contra, *, again: bool) -> Steps:
        """Run a task. Yielded counts include units of earlier runs. again: a lost worker began the task."""
        ...


@dataclass(frozen=True)
class Outcome:
    """The number of units of a finished task, and the task's return value."""

    units: int
    fact: Any


def run_task(steps: Steps, report: Callable[[int], bool]) -> Outcome | None:
    """Run a task; return None if stopped. report: takes the unit count; returns whether to continue."""
    units = 0
    # Closing saves the finished work before an error of `report` propagates.
    with closing(steps):
        while True:
            try:
                units += next(steps)
            except StopIteration as end:
                return Outcome(units, end.value)
            if not report(units):
                return None


Start = Callable[[int], Worker[Task]]
"""Creates a worker and loads the data that its tasks share. Pickled, and called once in each process with the
worker's number on its machine, starting at 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Job(Generic[Task]):
    """Work split into tasks.

    start: creates a worker. tasks: the remaining tasks. name: returns a task's name for messages.
    total: number of units, including finished ones. done: number of units that earlier runs finished.
    where: output, named in errors. here: creates a worker in the caller's process; None to use `start`.
    """

    start: Start[Task]
    tasks: Iterable[Task]
    name: Callable[[Task], str]
    total: int
    done: int
    where: object
    here: Callable[[], Worker[Task]] | None = None


Progress = Callable[[int, int], None]  # (units done, total units). May also be a TaskWatcher.


@dataclass(frozen=True, kw_only=True)
class TaskCounts:
    """Numbers of tasks. retried: how often a task lost its worker."""

    running: int = 0
    done: int = 0
    retried: int = 0


@runtime_checkable
class TaskWatcher(Protocol):
    """A progress callback that also receives task counts."""

    def tasks(self, counts: TaskCounts) -> None:
        """Receive the counts after a task has started, ended or been lost."""


class Executor(ABC):
    """Runs jobs. on_this_machine: whether all workers share this machine's disks."""

    on_this_machine: bool

    @property
    @abstractmethod
    def workers(self) -> int:
        """Number of tasks that run at the same time."""

    @abstractmethod
    def run(self, job: Job[Any], progress: Progress | None = None) -> list[Any]:
        """Run all tasks. Return their return values, except None, in order of completion.

        If a task fails or Ctrl-C is pressed, the other workers save their work before the error is raised.
        """


@dataclass(eq=False)
class Attempt:
    """A task in progress. losses: number of workers lost while running it. units: number finished so far."""

    task: Any
    losses: int = 0
    units: int = 0


class JobProgress:
    """Hands out tasks, collects return values and reports progress. running: attempts by worker number."""

    def __init__(self, job: Job[Any], progress: Progress | None) -> None:
        watcher: object = progress
        self.facts: list[Any] = []
        self.running: dict[int, Attempt] = {}
        self._job = job
        self._new = map(Attempt, job.tasks)
        self._lost: list[Attempt] = []
        self._progress = progress
        self._watcher = watcher if isinstance(watcher, TaskWatcher) else None
        self._units = self._reported = job.done
        self._done = self._retried = 0
        self._counts = TaskCounts()

    def begin(self, worker: int) -> Attempt | None:
        """Return the next task for a worker, lost tasks first; None if no task is left."""
        attempt = self._lost.pop() if self._lost else next(self._new, None)
        if attempt is not None:
            self.running[worker] = attempt
            self._report()
        return attempt

    def reached(self, worker: int, units: int) -> None:
        if worker in self.running:
            self.running[worker].units = units
            self._report()

    def ended(self, worker: int, outcome: Outcome) -> None:
        del self.running[worker]
        self._units += outcome.units
        self._done += 1
        if outcome.fact is not None:
            self.facts.append(outcome.fact)
        self._report()

    def lost(self, worker: int) -> None:
        attempt = self.running.pop(worker)
        attempt.losses += 1
        attempt.units = 0
        self._lost.append(attempt)
        self._retried += 1
        self._report()

    def named(self, error: Exception, worker: int) -> Exception:
        if not isinstance(error, LabelPoolError) or worker not in self.running:
            return error
        problem = f"{error.problem}, in {self._job.name(self.running[worker].task)}"
        return type(error)(**{**error.parts(), "problem": problem})

    def died(self, problem: str, worker: int) -> Exception:
        hint = "finished work is kept; run the same command again, with fewer --jobs if memory ran out"
        return self.named(WorkerDiedError(problem, where=self._job.where, hint=hint), worker)

    def _report(self) -> None:
        units = self._units + sum(attempt.units for attempt in self.running.values())
        if self._progress is not None and units != self._reported:
            self._reported = units
            self._progress(units, self._job.total)
        counts = TaskCounts(running=len(self.running), done=self._done, retried=self._retried)
        if self._watcher is not None and counts != self._counts:
            self._counts = counts
            self._watcher.tasks(counts)


MAX_PIECES = 1 << 24  # Label batches or images in a list, which takes up to 2 GB.


def require_listable(count: int, *, what: str, hint: str) -> None:
    """Refuse a job of more than MAX_PIECES pieces. what: name of the pieces, such as "label batches"."""
    if count > MAX_PIECES:
        raise InvalidArgumentError(
            f"too many {what} for one job", expected=f"at most {MAX_PIECES}", got=count, hint=hint
        )
