"""The engine of this machine: several processes, any of which may be killed at any moment.

The standard process pool and queues share locks and pipes among processes: one that is killed while it
holds a lock, or while others are being started, leaves the rest waiting for ever. Here each process has
a connection of its own to the parent, tasks are handed out one by one, and one that closes tells of a death.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from lpld_labels.errors import LabelPoolError, WorkerDiedError
from lpld_labels.exec.job import Executor, Job, JobProgress, Outcome, Progress, Worker, naming_task, run_task

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class LocalExecutor(Executor):
    """Processes of this machine; a single one is the caller's own."""

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs

    @property
    def workers(self) -> int:
        return self._jobs

    @property
    def on_this_machine(self) -> bool:
        return True

    def run(self, job: Job[Any], progress: Progress | None = None) -> list[Any]:
        """Do all tasks; if a process dies, the others end with what they have in hand, and it is told."""
        standing = JobProgress(job, progress)
        if min(self._jobs, job.total - job.done) <= 1:
            return _done_here(job, standing)
        processes = _Processes(job, standing)
        try:
            with _one_thread_each():
                processes.start(self._jobs)
            while processes.connected:
                processes.handle_next()
        finally:
            processes.stop()
        return processes.facts


ONE_PROCESS = LocalExecutor()
"""The caller's own."""


def _done_here(job: Job[Any], standing: JobProgress) -> list[Any]:
    """Do all tasks in this process."""
    worker = job.start(0) if job.here is None else job.here()
    facts = []

    def tell(units: int) -> bool:
        standing.reached(0, units)
        return True

    for task in job.tasks:
        standing.begun(0)
        outcome = run_task(worker.do(task, again=False), tell)
        if outcome is not None:
            standing.ended(0, outcome.units)
            facts.append(outcome.fact)
    return [fact for fact in facts if fact is not None]


@dataclass(frozen=True)
class _Reached:
    """So many units of the present task are finished."""

    units: int


@dataclass(frozen=True)
class _Ready:
    """A process wants its next task. outcome: of the last one; None before the first."""

    outcome: Outcome | None = None


@dataclass(frozen=True)
class _Failed:
    error: Exception


class _Processes:
    """The processes at work on one job. facts: what tasks gave back."""

    def __init__(self, job: Job[Any], standing: JobProgress) -> None:
        self._job, self._standing = job, standing
        self._tasks = iter(job.tasks)
        self._context = multiprocessing.get_context("spawn")
        # Written here, read there: a byte that needs no lock.
        self._stop = self._context.RawValue("b", False)
        self.connected: dict[Connection, BaseProcess] = {}
        self._all: list[BaseProcess] = []
        self._number: dict[Connection, int] = {}
        self._in_hand: dict[Connection, Any] = {}
        self.facts: list[Any] = []

    def start(self, count: int) -> None:
        for number in range(count):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=_serve, args=(theirs, self._stop, number), name=f"process {number + 1}"
            )
            # Known before it runs: wherever Ctrl-C strikes, its connection gets closed, which ends it.
            self.connected[ours] = process
            self._number[ours] = number
            self._all.append(process)
            with _interrupts_held(), theirs:
                # With the block its end is left to the process alone, so that it closes when it dies.
                process.start()
            # Not among the arguments: starting a process that dies at once blocks on long ones.
            self._send(ours, self._job.start)

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
                raise self._named(message.error, connection)
            if isinstance(message, _Reached):
                self._standing.reached(self._number[connection], message.units)
                continue
            self._ended(connection, message)
            try:
                task = next(self._tasks)
            except StopIteration:
                self._release(connection)
            else:
                self._in_hand[connection] = task
                self._standing.begun(self._number[connection])
                self._send(connection, task)

    def _ended(self, connection: Connection, message: _Ready) -> None:
        outcome = message.outcome
        if outcome is None:
            return
        del self._in_hand[connection]
        self._standing.ended(self._number[connection], outcome.units)
        if outcome.fact is not None:
            self.facts.append(outcome.fact)

    def _named(self, error: Exception, connection: Connection) -> Exception:
        if isinstance(error, LabelPoolError) and connection in self._in_hand:
            return naming_task(error, self._job.name(self._in_hand[connection]))
        return error

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
        raise self._named(
            WorkerDiedError(
                f"{process.name} of {len(self._all)} died (exit code {process.exitcode})",
                where=self._job.where,
                hint="finished work is kept; run the same command again, with fewer processes if memory ran "
                "out",
            ),
            connection,
        )

    def stop(self) -> None:
        """End all processes, each with its work in hand."""
        self._stop.value = True
        for connection in list(self.connected):
            self._release(connection)
        for process in self._all:
            if process.pid is not None:
                process.join()


def _serve(connection: Connection, stop: Any, number: int) -> None:
    """Be one of the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def send(news: Any) -> bool:
        """Tell the parent and return whether to go on."""
        with contextlib.suppress(ConnectionError):
            connection.send(news)
        return not stop.value and os.getppid() == parent

    def tell(units: int) -> bool:
        return send(_Reached(units))

    try:
        received = _received(connection)
        worker: Worker[Any] = next(received)(number)
        go_on = send(_Ready())
        while go_on:
            outcome = run_task(worker.do(next(received), again=False), tell)
            go_on = outcome is not None and send(_Ready(outcome))
    except _NoMoreError:
        return
    except Exception as error:
        send(_Failed(error))
        # Those are for people; anything else is a defect, and its traceback is of use.
        if not isinstance(error, LabelPoolError):
            raise


class _NoMoreError(Exception):
    """The parent has closed the connection, or is gone."""


def _received(connection: Connection) -> Iterator[Any]:
    """Yield what the parent sends."""
    while True:
        try:
            received = connection.recv()
        except (EOFError, ConnectionError):
            raise _NoMoreError from None
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


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Start processes whose linear algebra stays on one core: they are the parallelism."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
