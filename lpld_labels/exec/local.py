"""The local executor: several processes on this machine, any of which may be killed at any moment.

Processes of a standard pool share locks and pipes: if one is killed while it holds a lock, or while others
start, the rest hang. Here each process has its own connection to the parent and receives one task at a time.
A closed connection means that its process died.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from lpld_labels.errors import LabelPoolError
from lpld_labels.exec.job import Executor, Job, JobProgress, Progress, run_task

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class LocalExecutor(Executor):
    """Runs tasks in processes on this machine, or in the caller's process if one is enough."""

    on_this_machine = True

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs

    @property
    def workers(self) -> int:
        return self._jobs

    def run(self, job: Job[Any], progress: Progress | None = None) -> list[Any]:
        """Run all tasks; if a process dies, the others save their work and WorkerDiedError is raised."""
        state = JobProgress(job, progress)
        if min(self._jobs, job.total - job.done) <= 1:
            return _run_here(job, state)
        processes = _Processes(job, state)
        try:
            with _one_thread_each():
                processes.start(self._jobs)
            while processes.connected:
                processes.handle_next()
        finally:
            processes.stop()
        return state.facts


ONE_PROCESS = LocalExecutor()  # Runs tasks in the caller's own process.


def _run_here(job: Job[Any], state: JobProgress) -> list[Any]:
    worker = job.start(0) if job.here is None else job.here()

    def report(units: int) -> bool:
        state.reached(0, units)
        return True

    while (attempt := state.begin(0)) is not None:
        if (outcome := run_task(worker.do(attempt.task, again=False), report)) is not None:
            state.ended(0, outcome)
    return state.facts


class _Processes:
    """Processes of a job. Each sends None when ready, then counts and an Outcome per task, or an error."""

    def __init__(self, job: Job[Any], state: JobProgress) -> None:
        self._job, self._state = job, state
        self._context = multiprocessing.get_context("spawn")
        # Written by the parent and read by the workers: one byte needs no lock.
        self._stop = self._context.RawValue("b", False)
        self._all: list[BaseProcess] = []
        self.connected: dict[Connection, int] = {}

    def start(self, count: int) -> None:
        for number in range(count):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=_serve, args=(theirs, self._stop, number), name=f"process {number + 1}"
            )
            # Register before starting: after Ctrl-C, `stop` closes all connections, which ends the processes.
            self.connected[ours] = number
            self._all.append(process)
            with _interrupts_held(), theirs:
                # After the block, only the child holds `theirs`, which closes when the child dies.
                process.start()
            # Send `start` only now: a large argument would block process.start() if the process died at once.
            self._send(ours, self._job.start)

    def handle_next(self) -> None:
        ready = wait(list(self.connected))
        for connection, number in [item for item in self.connected.items() if item[0] in ready]:
            try:
                message = connection.recv()
            except (EOFError, ConnectionError):
                raise self._death(connection) from None
            if isinstance(message, Exception):
                raise self._state.named(message, number)
            if isinstance(message, int):
                self._state.reached(number, message)
                continue
            if message is not None:
                self._state.ended(number, message)
            attempt = self._state.begin(number)
            if attempt is None:
                self._release(connection)
            else:
                self._send(connection, attempt.task)

    def _send(self, connection: Connection, message: Any) -> None:
        try:
            connection.send(message)
        except ConnectionError:
            raise self._death(connection) from None

    def _release(self, connection: Connection) -> None:
        del self.connected[connection]
        connection.close()

    def _death(self, connection: Connection) -> Exception:
        number = self.connected[connection]
        process = self._all[number]
        self._release(connection)
        process.join()
        problem = f"{process.name} of {len(self._all)} died (exit code {process.exitcode})"
        return self._state.died(problem, number)

    def stop(self) -> None:
        """End all processes; each saves its finished work first."""
        self._stop.value = True
        for connection in list(self.connected):
            self._release(connection)
        for process in self._all:
            if process.pid is not None:
                process.join()


def _serve(connection: Connection, stop: Any, number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def send(message: Any) -> bool:
        with contextlib.suppress(ConnectionError):
            connection.send(message)
        return not stop.value and os.getppid() == parent

    def receive() -> Any:
        """Return the next message; None once the parent has closed the connection."""
        with contextlib.suppress(EOFError, ConnectionError):
            return connection.recv()
        return None

    try:
        start = receive()
        if start is None:
            return
        worker = start(number)
        proceed = send(None)
        while proceed and (task := receive()) is not None:
            outcome = run_task(worker.do(task, again=False), send)
            proceed = outcome is not None and send(outcome)
    except Exception as error:
        send(error)
        # Any other error is a bug, so show its traceback.
        if not isinstance(error, LabelPoolError):
            raise


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delay Ctrl-C until the block ends. Processes started in the block never receive it."""
    # Starting the tracker unblocks the signal, so start the tracker first.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Limit linear algebra to one thread in processes started in the block."""
    before = {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name in _THREAD_VARIABLES:
            del os.environ[name]
        os.environ.update(before)
