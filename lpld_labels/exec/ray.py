"""The Ray executor: each worker is a Ray actor on any machine of a cluster and runs one task at a time.

Data shared by tasks (weights, image tables) is put into Ray's object store once and fetched once per machine.
A lost worker is replaced when resources are free, and its task goes to the next free worker. Only tasks,
counts and small return values pass through the caller's process.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpld_labels.errors import ClusterError, LabelPoolError
from lpld_labels.exec.job import Executor, Job, JobProgress, Outcome, Progress, Worker, run_task

CONNECT_SECONDS = 10.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
NEWS_SECONDS = 0.5  # Between progress queries to the workers.
STOP_SECONDS = 120.0  # For stopped workers to save their finished work.
MOST_LOSSES = 10  # Of one task, or of one worker before its first task. Then the job fails.
_GONE = object()  # Result of a call to a lost worker.


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """The cluster, and the resources of each task.

    address: HOST:PORT of the cluster's head node; None to start Ray on this machine, for this executor only.
    workers: number of workers; None for as many as the cluster has resources for.
    gpus_per_task, cpus_per_task: GPUs and CPUs reserved per worker. Fractions let workers share a GPU.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_task: float = 0.0
    cpus_per_task: float = 1.0


class RayExecutor(Executor):
    """Runs tasks on a Ray cluster. A context manager; connects to Ray, or starts it, on first use."""

    on_this_machine = False

    def __init__(self, settings: RaySettings) -> None:
        if settings.cpus_per_task <= 0 and settings.gpus_per_task <= 0:
            raise ClusterError(
                "a task reserves no CPU or GPU", hint="set cpus_per_task or gpus_per_task above 0"
            )
        self._settings = settings
        self._ray = _import_ray(settings.address)
        self._workers: int | None = None
        self._started = False
        if settings.address is not None:
            _require_listener(settings.address)

    @property
    def workers(self) -> int:
        if self._workers is None:
            if not self._ray.is_initialized():
                self._connect()
            self._workers = self._settings.workers or self._room()
        return self._workers

    def run(self, job: Job[Any], progress: Progress | None = None) -> list[Any]:
        left = job.total - job.done
        if left <= 0:
            return []
        count = min(self.workers, left)
        state = JobProgress(job, progress)
        group = _WorkerGroup(self._ray, self._settings, job, state)
        try:
            group.work(count)
        except BaseException:
            group.stop()
            raise
        finally:
            group.dismiss()
        return state.facts

    def __enter__(self) -> RayExecutor:
        # Ray prints node events on stdout, which is reserved for a command's data.
        self._messages = contextlib.redirect_stdout(sys.stderr)
        self._messages.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            if self._started:
                self._ray.shutdown()
        finally:
            self._messages.__exit__(*error)
        self._started, self._workers = False, None

    def _connect(self) -> None:
        address = self._settings.address
        quietly = {"log_to_driver": False, "configure_logging": False}
        logging.getLogger("ray").setLevel(logging.ERROR)
        self._started = True
        if address is None:
            needed = math.ceil((self._settings.workers or 1) * self._settings.cpus_per_task)
            cpus = max(os.cpu_count() or 1, needed)
            self._ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quietly)
            return
        try:
            self._ray.init(address=address, **quietly)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _no_cluster(address, str(error).partition("\n")[0]) from None

    def _room(self) -> int:
        wanted = {"CPU": self._settings.cpus_per_task, "GPU": self._settings.gpus_per_task}
        wanted = {name: amount for name, amount in wanted.items() if amount > 0}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = sum(min(int(node.get(name, 0) / amount) for name, amount in wanted.items()) for node in nodes)
        if room == 0:
            found = [", ".join(f"{node.get(name, 0):g} {name}" for name in wanted) for node in nodes]
            raise ClusterError(
                "no machine of the cluster has the resources for a task",
                where=self._settings.address or "Ray on this machine",
                expected=", ".join(f"{amount:g} {name}" for name, amount in wanted.items()),
                got="; ".join(found),
                hint="reduce --threads or --gpus-per-task, or add machines",
            )
        return room


def _import_ray(address: str | None) -> Any:
    """Import Ray with usage reports off. Without a remote cluster, Ray listens on localhost only."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # This silences a warning for Ray's own developers about a future default.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address is None or address.rpartition(":")[0] in _LOOPBACK:
        # Despite its name, this variable makes Ray listen on 127.0.0.1 only, unreachable from other machines.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ClusterError(
            "Ray is not installed", hint="pip install 'lpld-labels[ray]', or leave out --ray"
        ) from None


def _require_listener(address: str) -> None:
    """Refuse an address where nothing listens; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ClusterError(
            "not the address of a Ray cluster",
            expected="HOST:PORT of its head node, as printed by 'ray start --head'",
            got=address,
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, reason: str) -> ClusterError:
    return ClusterError(
        f"cannot connect to a Ray cluster: {reason}",
        where=address,
        hint="start Ray (ray start --head) and add this machine to the cluster, or use --ray local",
    )


@dataclass(eq=False)
class _Seat:
    """A worker slot: holds an actor, which is replaced when it dies."""

    number: int
    actor: Any = None
    failed_starts: int = 0


class _WorkerGroup:
    def __init__(self, ray: Any, settings: RaySettings, job: Job[Any], state: JobProgress) -> None:
        self._ray, self._state = ray, state
        self._seats: list[_Seat] = []
        self._idle: list[_Seat] = []
        # Pending calls: `_awaited` holds set-ups and tasks, `_news` holds progress queries.
        self._awaited: dict[Any, _Seat] = {}
        self._news: dict[Any, _Seat] = {}
        self._last_news = time.monotonic()
        self._shared = ray.put(job.start)
        # Ray gives linear algebra as many threads as a worker reserves CPUs.
        self._actors = ray.remote(
            num_cpus=settings.cpus_per_task,
            num_gpus=settings.gpus_per_task,
            max_restarts=0,
            concurrency_groups={"work": 1, "control": 1},
        )(RayWorker)

    def _fill(self, seat: _Seat) -> None:
        """Start a new worker in a slot. The worker gets its first task after its set-up."""
        seat.actor = self._actors.remote([self._shared], str(Path.cwd()))
        self._awaited[seat.actor.set_up.options(concurrency_group="work").remote()] = seat

    def work(self, count: int) -> None:
        for number in range(count):
            self._seats.append(_Seat(number))
            self._fill(self._seats[-1])
        while True:
            while self._idle and (attempt := self._state.begin(self._idle[-1].number)) is not None:
                seat = self._idle.pop()
                method = seat.actor.do.options(concurrency_group="work")
                self._awaited[method.remote(attempt.task, attempt.losses > 0)] = seat
            # A worker is idle only when no task is left.
            if self._idle and not self._state.running:
                return
            waited = [*self._awaited, *self._news]
            ready, _ = self._ray.wait(waited, timeout=NEWS_SECONDS)
            if ready:
                ready, _ = self._ray.wait(waited, num_returns=len(waited), timeout=0)
            for reference in ready:
                self._handle(reference)
            self._ask_for_news()

    def _handle(self, reference: Any) -> None:
        result = self._result(reference)
        if reference in self._news:
            seat = self._news.pop(reference)
            if result is not _GONE:
                self._state.reached(seat.number, result)
            return
        seat = self._awaited.pop(reference)
        if result is _GONE:
            self._replace(seat)
        elif isinstance(result, LabelPoolError):
            raise self._state.named(result, seat.number)
        else:
            seat.failed_starts = 0
            self._idle.append(seat)
            if isinstance(result, Outcome):
                self._state.ended(seat.number, result)

    def _result(self, reference: Any) -> Any:
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except exceptions.RayTaskError as error:
            # This is a bug in the task, so show the worker's own traceback.
            raise error.cause from error
        except (
            exceptions.RayActorError,
            exceptions.ObjectLostError,
            exceptions.NodeDiedError,
            # Ray kills workers when a machine runs out of memory.
            exceptions.OutOfMemoryError,
            exceptions.WorkerCrashedError,
        ):
            return _GONE

    def _replace(self, seat: _Seat) -> None:
        # Kill the worker: it may be alive but unreachable, and two workers must not run the same task.
        self._ray.kill(seat.actor)
        attempt = self._state.running.get(seat.number)
        if attempt is None:
            seat.failed_starts += 1
            if seat.failed_starts >= MOST_LOSSES:
                problem = f"worker {seat.number + 1} died {MOST_LOSSES} times before its first task"
                raise self._state.died(problem, seat.number)
        elif attempt.losses + 1 >= MOST_LOSSES:
            raise self._state.died(f"{MOST_LOSSES} workers died", seat.number)
        else:
            self._state.lost(seat.number)
        self._fill(seat)

    def _ask_for_news(self) -> None:
        now = time.monotonic()
        if now - self._last_news < NEWS_SECONDS:
            return
        self._last_news = now
        asked = {seat.number for seat in self._news.values()}
        for number in self._state.running.keys() - asked:
            seat = self._seats[number]
            self._news[seat.actor.reached.options(concurrency_group="control").remote()] = seat

    def stop(self) -> None:
        busy = [ref for ref, seat in self._awaited.items() if seat.number in self._state.running]
        for reference in busy:
            self._awaited[reference].actor.stop.options(concurrency_group="control").remote()
        if busy:
            self._ray.wait(busy, num_returns=len(busy), timeout=STOP_SECONDS)

    def dismiss(self) -> None:
        for seat in self._seats:
            self._ray.kill(seat.actor)


class RayWorker:
    """A Ray actor that runs tasks of a job.

    It has two threads: `work` runs the set-up and the tasks, `control` answers progress queries and stops.

    start: a list with Ray's reference to the job's `start`. Ray does not resolve references in lists.
    directory: the caller's working directory, for relative paths.
    """

    def __init__(self, start: list[Any], directory: str) -> None:
        self._start = start
        self._directory = directory
        self._worker: Worker[Any]
        self._units = 0
        self._stop = False

    def set_up(self) -> LabelPoolError | None:
        """Load data that tasks share. Return library errors, because Ray would wrap raised errors."""
        import ray

        try:
            os.chdir(self._directory)
        except OSError as error:
            return ClusterError(
                f"a worker cannot enter the command's working directory: {error.strerror}",
                where=self._directory,
                hint="all machines of the cluster need the same paths: use a shared disk",
            )
        try:
            # Unpickle `start` after chdir, because unpickling may open files by relative paths.
            (start,) = ray.get(self._start)
            # Each worker has number 0, because Ray shows a worker only its own GPUs.
            self._worker = start(0)
        except LabelPoolError as error:
            return error
        except ray.exceptions.RayError as error:
            # `start` could not be unpickled; the cause says what is missing.
            cause = error.__cause__ or error
            if isinstance(cause, LabelPoolError):
                return cause
            return ClusterError(
                f"a worker cannot be set up: {cause}".partition("\n")[0],
                hint="all machines of the cluster need the same versions and the same paths",
            )
        return None

    def do(self, task: Any, again: bool) -> Outcome | LabelPoolError | None:
        self._units = 0
        try:
            return run_task(self._worker.do(task, again=again), self._report)
        except LabelPoolError as error:
            return error

    def _report(self, units: int) -> bool:
        self._units = units
        return not self._stop

    def reached(self) -> int:
        return self._units

    def stop(self) -> None:
        self._stop = True
