"""Work shared by several processes, any of which may be killed at any moment.

The standard process pool and queues share locks and pipes among processes: one that is killed while it
holds a lock, or while others are being started, leaves the rest waiting for ever. Here each process has
a connection of its own to the parent, tasks are handed out one by one, and one that closes tells of a death.
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

Send = Callable[[Any], bool]
"""Sends news to the parent and returns whether to go on; when not, finish what is in hand and return."""
Do = Callable[[Task, Send], None]
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
    on_message: Callable[[Any], None],
    where: object,
) -> None:
    """Do all tasks in several processes; return when the last is done.

    When a task fails, a process dies or Ctrl-C is pressed, the other processes are told to stop, finish
    what they have in hand and end before the error is raised.

    tasks: taken one by one as processes become free, so they can be many.
    on_message: called in this process with what tasks send.
    where: named in the error if a process dies.
    """
    workers = _Workers(start, iter(tasks), on_message, where)
    try:
        workers.start(processes)
        while workers.connected:
            workers.handle_next()
    finally:
        workers.stop()


class _Workers(Generic[Task]):
    def __init__(
        self, start: Start[Task], tasks: Iterator[Task], on_message: Callable[[Any], None], where: object
    ) -> None:
        self._start, self._tasks, self._on_message, self._where = start, tasks, on_message, where
        self._context = multiprocessing.get_context("spawn")
        # Written here, read there: a byte that needs no lock.
        self._stop = self._context.RawValue("b", False)
        self.connected: dict[Connection, BaseProcess] = {}
        self._all: list[BaseProcess] = []

    def start(self, count: int) -> None:
        for number in range(count):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=_serve, args=(theirs, self._stop), name=f"process {number + 1}"
            )
            # Known before it runs: wherever Ctrl-C strikes, its connection gets closed, which ends it.
            self.connected[ours] = process
            self._all.append(process)
            with _interrupts_held(), theirs:
                # With the block its end is left to the process alone, so that it closes when it dies.
                process.start()
            # Not among the arguments: starting a process that dies at once blocks on long ones.
            self._send(ours, self._start)

    def handle_next(self) -> None:
        """Wait for a message of any process and act on it."""
        ready = wait(list(self.connected))
        for connection in [connection for connection in self.connected if connection in ready]:
            try:
                message = connection.recv()
            except (EOFError, ConnectionError):
                self._died(connection)
                continue
            if isinstance(message, _Failed):
                raise message.error
            if not isinstance(message, _Finished):
                self._on_message(message)
                continue
            task = next(self._tasks, None)
            if task is None:
                self._release(connection)
            else:
                self._send(connection, task)

    def _send(self, connection: Connection, what: Any) -> None:
        try:
            connection.send(what)
        except ConnectionError:
            self._died(connection)

    def _release(self, connection: Connection) -> None:
        """Let a process end: it does when its connection closes."""
        del self.connected[connection]
        connection.close()

    def _died(self, connection: Connection) -> None:
        process = self.connected.pop(connection)
        connection.close()
        process.join()
        raise WorkerDiedError(
            f"{process.name} of {len(self._all)} died (exit code {process.exitcode})",
            where=self._where,
            hint="finished work is kept; run the same command again, with fewer processes if memory ran out",
        )

    def stop(self) -> None:
        """End all processes, each with its work in hand."""
        self._stop.value = True
        for connection in list(self.connected):
            self._release(connection)
        for process in self._all:
            if process.pid is not None:
                process.join()


def _serve(connection: Connection, stop: Any) -> None:
    """Be one of the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def send(news: Any) -> bool:
        with contextlib.suppress(ConnectionError):
            connection.send(news)
        return not stop.value and os.getppid() == parent

    do: Do[Any] | None = None
    try:
        for received in _received(connection):
            if do is None:
                do = received()
            else:
                do(received, send)
            if not send(_Finished()):
                return
    except Exception as error:
        send(_Failed(error))
        # Those are for people; anything else is a defect, and its traceback is of use.
        if not isinstance(error, LabelPoolError):
            raise


def _received(connection: Connection) -> Iterator[Any]:
    """Yield what the parent sends, until it closes the connection or is gone."""
    while True:
        try:
            received = connection.recv()
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
