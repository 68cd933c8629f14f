"""What a job is, whoever does it: tasks, workers that do them, and how far they have come.

A task is small to describe, can be done by any worker, and doing it again does no harm: a worker writes what
comes of it to the job's output, sealed, and gives back nothing but numbers. So which tasks are left follows
from what is sealed, and no death of a worker, a machine or the process that hands tasks out costs more
than what was not sealed yet.
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
"""A task on its way: yields how many units (batches, images) each step has finished, and returns a small
fact about it or None. Closing it asks to stop: what is finished is made safe then."""


class Worker(Protocol[Task_contra]):
    """Does tasks, one after the other, in a process of its own or in the caller's."""

    def do(self, task: Task_contra, *, again: bool) -> Steps:
        """Do a task; all its units are counted, also those found done.

        again: another worker was lost in the middle of it, and may have sealed a part.
        """
        ...


@dataclass(frozen=True)
class Outcome:
    """What came of a task: its units, and the fact that it gave back."""

    units: int
    fact: Any


def run_task(steps: Steps, tell: Callable[[int], bool]) -> Outcome | None:
    """Go through the steps of a task; None if it was stopped.

    tell: called with the units finished so far; returns whether to go on.
    """
    units = 0
    # Closed in any case: what is finished is made safe before an error of the listener goes on its way.
    with closing(steps):
        while True:
            try:
                units += next(steps)
            except StopIteration as end:
                return Outcome(units, end.value)
            if not tell(units):
                return None


Start = Callable[[int], Worker[Task]]
"""Sets a worker up: loads and opens what its tasks share. Called once in each process with the number of the
worker on its machine, from 0. Pickled."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Job(Generic[Task]):
    """Work cut into tasks.

    start: makes the workers. tasks: what is left to do; taken one by one as workers become free, so they may
    be many. name: says which task it is, for people. total, done: units of the whole job, and those that
    were finished before. where: the output, for errors.
    here: a worker in this process, for an engine of just that; None to make one by `start`.
    """

    start: Start[Task]
    tasks: Iterable[Task]
    name: Callable[[Task], str]
    total: int
    done: int
    where: object
    here: Callable[[], Worker[Task]] | None = None


Progress = Callable[[int, int], None]
"""Called with (units done, units in all). It may be a TaskWatcher too."""


@dataclass(frozen=True, kw_only=True)
class TaskCounts:
    """How many tasks are being done, are done, and were begun again because their worker was lost."""

    running: int = 0
    done: int = 0
    retried: int = 0


@runtime_checkable
class TaskWatcher(Protocol):
    """Progress that wants to know about tasks too."""

    def tasks(self, counts: TaskCounts) -> None:
        """Some task began, ended or was lost."""


class Executor(ABC):
    """Does jobs."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many tasks are done at the same time."""

    @property
    @abstractmethod
    def on_this_machine(self) -> bool:
        """Whether workers are on this machine, so that what it has on its disks is theirs too."""

    @abstractmethod
    def run(self, job: Job[Any], progress: Progress | None = None) -> list[Any]:
        """Do all tasks; return the facts that they gave back, but for None, in the order they came.

        When a task fails or Ctrl-C is pressed, the other workers make safe what they have finished before
        the error is raised.
        """

    def task_size(self, units: int, *, largest: int) -> int:
        """Return how many units a task should have: few enough that all workers have some to the end."""
        return max(1, min(largest, -(-units // (TASKS_PER_WORKER * self.workers))))


TASKS_PER_WORKER = 8
"""At least so many, if there is enough to do: at the end, workers wait for the last task to finish."""


class JobProgress:
    """How far a job has come, told to its progress whenever that changes."""

    def __init__(self, job: Job[Any], progress: Progress | None) -> None:
        watcher: object = progress
        self._progress = progress
        self._watcher = watcher if isinstance(watcher, TaskWatcher) else None
        self._total = job.total
        self._finished = self._told = job.done
        self._partial: dict[int, int] = {}
        self._done = self._retried = 0

    def begun(self, worker: int) -> None:
        """A worker has got a task."""
        self._partial[worker] = 0
        self._tell_tasks()

    def reached(self, worker: int, units: int) -> None:
        """So many units of the task in a worker's hands are finished."""
        if worker in self._partial:
            self._partial[worker] = units
            self._tell_units()

    def ended(self, worker: int, units: int) -> None:
        """A worker has finished its task, which had so many units."""
        del self._partial[worker]
        self._finished += units
        self._done += 1
        self._tell_units()
        self._tell_tasks()

    def lost(self, worker: int) -> None:
        """A worker is gone, and its task will be begun again."""
        if self._partial.pop(worker, None) is not None:
            self._retried += 1
            self._tell_units()
            self._tell_tasks()

    def _tell_units(self) -> None:
        done = self._finished + sum(self._partial.values())
        if self._progress is not None and done != self._told:
            self._told = done
            self._progress(done, self._total)

    def _tell_tasks(self) -> None:
        if self._watcher is not None:
            counts = TaskCounts(running=len(self._partial), done=self._done, retried=self._retried)
            self._watcher.tasks(counts)


def naming_task(error: LabelPoolError, task: str) -> LabelPoolError:
    """Return an error that also says which task it came from."""
    return type(error)(
        f"{error.problem}, in {task}",
        where=error.where,
        expected=error.expected,
        got=error.got,
        hint=error.hint,
    )


MAX_PIECES = 1 << 24
"""Label batches of a build before pruning, or images of a recovery: a list of them takes up to 2 GB."""


def require_listable(count: int, *, what: str, hint: str) -> None:
    """Refuse a job of more pieces than are ever listed. what: the pieces, as in "label batches"."""
    if count > MAX_PIECES:
        raise InvalidArgumentError(
            f"too many {what} for one job", expected=f"at most {MAX_PIECES}", got=count, hint=hint
        )
