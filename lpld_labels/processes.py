"""Work shared by several processes, any of which may be killed at any moment.

The standard process pool and queues share locks and pipes among processes: one that is killed while it
holds a lock, or while others are being started, leaves the rest waiting for ever. Here each process has
a line of its own to the parent, tasks are handed out one by one, and a line that ends tells of a death.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from lpld_labels.errors import LabelPoolError, WorkerDiedError

Task = TypeVar("Task")

Tell = Callable[[Any], bool]
"""Sends news to the parent and returns whether to go on; when not, finish what is in hand and return."""
Do = Callable[[Task, Tell], None]
"""Does one task. What it raises ends the whole work and is raised in the parent."""
Start = Callable[[], Do[Task]]
"""Called once in each process, to set up what its tasks share. Pickled, so a module's function."""


@dataclass(frozen=True)
class _Finished:
    """A process is ready for its next task."""


@dataclass(frozen=True)
class _Failed:
    error: Exception


def work_in_processes(
    start: Start[Task],
    tasks: Iterable[Task],
    *,
    processes: int,
    heard: Callable[[Any], None],
    where: object,
) -> None:
    """Do all tasks in several processes; return when the last is done.

    When a task fails, a process dies or Ctrl-C is pressed, the other processes are told to stop, finish
    what they have in hand and end before the error is raised.

    tasks: taken one by one as processes become free, so they can be many.
    heard: called in this process with what tasks tell.
    where: named in the error if a process dies.
    """
    crew = _Crew(start, iter(tasks), heard, where)
    try:
        crew.enlist(processes)
        while crew.members:
            crew.attend()
    finally:
        crew.dismiss()


class _Crew(Generic[Task]):
    def __init__(
        self, start: Start[Task], tasks: Iterator[Task], heard: Callable[[Any], None], where: object
    ) -> None:
        self._start, self._tasks, self._heard, self._where = start, tasks, heard, where
        self._context = multiprocessing.get_context("spawn")
        # Written here, read there: a byte that needs no lock.
        self._stop = self._context.RawValue("b", False)
        self.members: dict[Connection, BaseProcess] = {}
        self._all: list[BaseProcess] = []

    def enlist(self, count: int) -> None:
        for number in range(count):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=_serve, args=(theirs, self._stop), name=f"process {number + 1}"
            )
            # Known before it runs: wherever Ctrl-C strikes, its line gets closed, which ends it.
            self.members[ours] = process
            self._all.append(process)
            with _interrupts_held(), theirs:
                # With the block its end is left to the process alone, so that it closes when it dies.
                process.start()
            # Not among the arguments: starting a process that dies at once blocks on long ones.
            self._send(ours, self._start)

    def attend(self) -> None:
        """Wait for a message of any process and act on it."""
        ready = wait(list(self.members))
        for line in [line for line in self.members if line in ready]:
            try:
                message = line.recv()
            except (EOFError, ConnectionError):
                self._lost(line)
                continue
            if isinstance(message, _Failed):
                raise message.error
            if not isinstance(message, _Finished):
                self._heard(message)
                continue
            task = next(self._tasks, None)
            if task is None:
                self._release(line)
            else:
                self._send(line, task)

    def _send(self, line: Connection, what: Any) -> None:
        try:
            line.send(what)
        except ConnectionError:
            self._lost(line)

    def _release(self, line: Connection) -> None:
        """Let a process go home: without a line, it ends."""
        del self.members[line]
        line.close()

    def _lost(self, line: Connection) -> None:
        process = self.members.pop(line)
        line.close()
        process.join()
        raise WorkerDiedError(
            f"{process.name} of {len(self._all)} died (exit code {process.exitcode})",
            where=self._where,
            hint="finished work is kept; run the same command again, with fewer processes if memory ran out",
        )

    def dismiss(self) -> None:
        """End all processes, each with its work in hand."""
        self._stop.value = True
        for line in list(self.members):
            self._release(line)
        for process in self._all:
            if process.pid is not None:
                process.join()


def _serve(line: Connection, stop: Any) -> None:
    """Live as a process of the crew."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def tell(news: Any) -> bool:
        with contextlib.suppress(ConnectionError):
            line.send(news)
        return not stop.value and os.getppid() == parent

    do: Do[Any] | None = None
    try:
        for received in _received(line):
            if do is None:
                do = received()
            else:
                do(received, tell)
            if not tell(_Finished()):
                return
    except Exception as error:
        tell(_Failed(error))
        # Those are for people; anything else is a defect, and its traceback is of use.
        if not isinstance(error, LabelPoolError):
            raise


def _received(line: Connection) -> Iterator[Any]:
    """Yield what the parent sends, until it closes the line or is gone."""
    while True:
        try:
            received = line.recv()
        except (EOFError, ConnectionError):
            return
        yield received


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C for later: processes started meanwhile never get it, the parent does afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Starting it lets the signal through again, so it must be there already.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
