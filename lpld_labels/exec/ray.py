"""The Ray executor: one Ray actor per worker, on any machine of a cluster, with one task at a time.

What tasks share (weights, image tables) is put into Ray's store once and fetched once per machine. A lost
worker is replaced as soon as there is room, and its task goes to the next free worker. Only tasks, counts and
small facts pass through this process.
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
NEWS_SECONDS = 0.5
"""How often workers are asked for their progress."""
STOP_SECONDS = 120.0
"""How long workers may take to save their finished work when they are stopped."""
MOST_LOSSES = 10
"""Give up a task that has lost so many workers, and a worker whose set-up has failed so often."""
_GONE = object()
"""Stands for the answer of a lost worker."""


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """The cluster, and what each task needs.

    address: HOST:PORT of the cluster's head; None to start Ray on this machine, for this job alone.
    workers: at most so many; None for as many as there is room for.
    gpus_per_task, cpus_per_task: what a worker reserves; parts of a GPU may be shared.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_task: float = 0.0
    cpus_per_task: float = 1.0


class RayExecutor(Executor):
    """Workers of a Ray cluster; a context manager. Ray is joined or started when it is first needed."""

    on_this_machine = False

    def __init__(self, settings: RaySettings) -> None:
        if settings.cpus_per_task <= 0 and settings.gpus_per_task <= 0:
            raise ClusterError(
                "a task must hold something", hint="give cpus_per_task or gpus_per_task above 0"
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
        # Ray prints what happens to nodes on stdout, which belongs to a command's data.
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
                "no machine of the cluster has room for a task",
                where=self._settings.address or "Ray on this machine",
                expected=", ".join(f"{amount:g} {name}" for name, amount in wanted.items()),
                got="; ".join(found),
                hint="ask for less (--threads, --gpus-per-task), or add machines",
            )
        return room


def _import_ray(address: str | None) -> Any:
    """Import Ray without usage reports; for this machine alone, without listening to others."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Silences a warning about a future default, meant for Ray's own developers.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address is None or address.rpartition(":")[0] in _LOOPBACK:
        # Ray's name for "listen on 127.0.0.1 only, and do not replace it by an address others can reach".
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
    """Refuse an address where nothing listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ClusterError(
            "not the address of a Ray cluster",
            expected="HOST:PORT of its head, as 'ray start --head' prints it",
            got=address,
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, reason: str) -> ClusterError:
    return ClusterError(
        f"no Ray cluster answers: {reason}",
        where=address,
        hint="start one (ray start --head) and this machine's part of it, or use --ray local",
    )


@dataclass(eq=False)
class _Seat:
    """The place of one worker: an actor, and after its death another one."""

    number: int
    actor: Any = None
    failed_starts: int = 0


class _WorkerGroup:
    def __init__(self, ray: Any, settings: RaySettings, job: Job[Any], state: JobProgress) -> None:
        self._ray, self._state = ray, state
        self._seats: list[_Seat] = []
        self._idle: list[_Seat] = []
        # Pending answers: a set-up or a task, and questions about progress.
        self._awaited: dict[Any, _Seat] = {}
        self._news: dict[Any, _Seat] = {}
        self._last_news = time.monotonic()
        self._shared = ray.put(job.start)
        # Ray gives linear algebra as many threads as a worker holds CPUs.
        self._actors = ray.remote(
            num_cpus=settings.cpus_per_task,
            num_gpus=settings.gpus_per_task,
            max_restarts=0,
            concurrency_groups={"work": 1, "control": 1},
        )(RayWorker)

    def _fill(self, seat: _Seat) -> None:
        """Put a new worker on a seat; it gets its first task once it is set up."""
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
            # A defect: the worker's own traceback is useful.
            raise error.cause from error
        except (
            exceptions.RayActorError,
            exceptions.ObjectLostError,
            exceptions.NodeDiedError,
            # Ray ends workers itself when a machine runs out of memory.
            exceptions.OutOfMemoryError,
            exceptions.WorkerCrashedError,
        ):
            return _GONE

    def _replace(self, seat: _Seat) -> None:
        # It may only be unreachable, and two workers must not run the same task.
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
        """Stop all workers and wait until they have saved their finished work."""
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

    Two threads call it: `work` sets up and runs tasks, `control` asks for progress.

    start: a list with Ray's reference to the job's `start`; inside a list, Ray does not resolve it.
    directory: the caller's, for relative paths.
    """

    def __init__(self, start: list[Any], directory: str) -> None:
        self._start = start
        self._directory = directory
        self._worker: Worker[Any]
        self._units = 0
        self._stop = False

    def set_up(self) -> LabelPoolError | None:
        """Load what tasks share; return library errors, because Ray would wrap raised ones."""
        import ray

        try:
            os.chdir(self._directory)
        except OSError as error:
            return ClusterError(
                f"a worker cannot go to the directory the command was given in: {error.strerror}",
                where=self._directory,
                hint="all machines of the cluster need the same paths: use a shared disk",
            )
        try:
            # Only now: unpickling it may open files.
            (start,) = ray.get(self._start)
            # Ray shows a worker only its own GPUs.
            self._worker = start(0)
        except LabelPoolError as error:
            return error
        except ray.exceptions.RayError as error:
            # It could not be unpickled; the cause says what is missing.
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
