"""Jobs: work cut into tasks, the workers that run them, and their progress.

A task is small to describe, and any worker can run it. Running it twice does no harm: the worker seals its
result in the job's output and returns only numbers. What is sealed decides which tasks are left, so the death
of a worker, a machine or the caller costs no more than the unsealed work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from lpld_labels.errors import InvalidArgumentError, LabelPoolError

Task = TypeVar("Task")
Task_contra = TypeVar("Task_contra", contravariant=True)

Steps = Generator[int, None, Any]
"""A running task: yields the units (batches, images) that each step finished; returns a small fact or None.
Closing it saves the finished work and stops."""


class Worker(Protocol[Task_contra]):
    """Runs tasks one after the other, in its own process or the caller's."""

    def do(self, task: Task_contra, *, again: bool) -> Steps:
        """Run a task and count all its units, also those already done.

        again: another worker was lost while running it, and may have sealed a part.
        """
        ...


@dataclass(frozen=True)
class Outcome:
    """The units of a finished task, and the fact that it returned."""

    units: int
    fact: Any


def run_task(steps: Steps, report: Callable[[int], bool]) -> Outcome | None:
    """Run the steps of a task; return None if it was stopped.

    report: called with the units finished so far; returns whether to continue.
    """
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
"""Creates a worker: loads and opens what its tasks share. Pickled, and called once in each process with the
number of the worker on its machine, from 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Job(Generic[Task]):
    """Work cut into tasks.

    start: creates the workers. tasks: the remaining tasks, taken one by one. name: names a task in messages.
    total, done: units of the whole job, and those finished before. where: the output, for errors.
    here: creates a worker in this process, for an executor without others; None to use `start`.
    """

    start: Start[Task]
    tasks: Iterable[Task]
    name: Callable[[Task], str]
    total: int
    done: int
    where: object
    here: Callable[[], Worker[Task]] | None = None


Progress = Callable[[int, int], None]
"""Called with (units done, units in all). May also be a TaskWatcher."""


@dataclass(frozen=True, kw_only=True)
class TaskCounts:
    """How many tasks are running, done, and were restarted because their worker was lost."""

    running: int = 0
    done: int = 0
    retried: int = 0


@runtime_checkable
class TaskWatcher(Protocol):
    """A progress callback that also receives task counts."""

    def tasks(self, counts: TaskCounts) -> None:
        """A task started, ended or was lost."""


class Executor(ABC):
    """Runs jobs.

    on_this_machine: whether all workers share this machine's disks.
    """

    on_this_machine: bool

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many tasks run at the same time."""

    @abstractmethod
    def run(self, job: Job[Any], progress: Progress | None = None) -> list[Any]:
        """Run all tasks; return the facts that they returned, except None, in order of arrival.

        When a task fails or Ctrl-C is pressed, the other workers save their finished work before the error is
        raised.
        """


@dataclass(eq=False)
class Attempt:
    """A task in progress. losses: workers lost while running it; units: finished so far."""

    task: Any
    losses: int = 0
    units: int = 0


class JobProgress:
    """Hands out the tasks of a job, collects their facts, and reports progress. Workers are numbers.

    running: the attempts in progress, by worker.
    """

    def __init__(self, job: Job[Any], progress: Progress | None) -> None:
        watcher: object = progress
        self.facts: list[Any] = []
        self.running: dict[int, Attempt] = {}
        self._job = job
        self._tasks = iter(job.tasks)
        self._lost: list[Attempt] = []
        self._progress = progress
        self._watcher = watcher if isinstance(watcher, TaskWatcher) else None
        self._units = self._reported = job.done
        self._done = self._retried = 0
        self._counts = TaskCounts()

    def begin(self, worker: int) -> Attempt | None:
        """Give a worker the next task, lost ones first; None when no task is left."""
        if self._lost:
            attempt = self._lost.pop()
        else:
            try:
                attempt = Attempt(next(self._tasks))
            except StopIteration:
                return None
        self.running[worker] = attempt
        self._report()
        return attempt

    def reached(self, worker: int, units: int) -> None:
        """A worker has finished so many units of its task."""
        if worker in self.running:
            self.running[worker].units = units
            self._report()

    def ended(self, worker: int, outcome: Outcome) -> None:
        """A worker has finished its task."""
        del self.running[worker]
        self._units += outcome.units
        self._done += 1
        if outcome.fact is not None:
            self.facts.append(outcome.fact)
        self._report()

    def lost(self, worker: int) -> None:
        """A worker was lost; its task is next."""
        attempt = self.running.pop(worker)
        attempt.losses += 1
        attempt.units = 0
        self._lost.append(attempt)
        self._retried += 1
        self._report()

    def named(self, error: Exception, worker: int) -> Exception:
        """Return an error with the name of the worker's task added."""
        if not isinstance(error, LabelPoolError) or worker not in self.running:
            return error
        problem = f"{error.problem}, in {self._job.name(self.running[worker].task)}"
        return type(error)(
            problem, where=error.where, expected=error.expected, got=error.got, hint=error.hint
        )

    def _report(self) -> None:
        units = self._units + sum(attempt.units for attempt in self.running.values())
        if self._progress is not None and units != self._reported:
            self._reported = units
            self._progress(units, self._job.total)
        counts = TaskCounts(running=len(self.running), done=self._done, retried=self._retried)
        if self._watcher is not None and counts != self._counts:
            self._counts = counts
            self._watcher.tasks(counts)


MAX_PIECES = 1 << 24
"""Label batches of a build before pruning, or images of a recovery: a list of them takes up to 2 GB."""


def require_listable(count: int, *, what: str, hint: str) -> None:
    """Refuse a job of more pieces than are ever listed. what: the pieces, as in "label batches"."""
    if count > MAX_PIECES:
        raise InvalidArgumentError(
            f"too many {what} for one job", expected=f"at most {MAX_PIECES}", got=count, hint=hint
        )
