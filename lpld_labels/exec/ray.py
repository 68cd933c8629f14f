"""Ray: workers on many machines, one Ray actor each, with one task at a time.

What tasks share (weights, image tables) is put into Ray's store once and fetched once per machine. A lost
worker is replaced and its task begun again by whoever is free; a replacement that finds no room waits for it
while the others go on. Nothing but tasks, counts and small facts passes through this process.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import socket
import time
import types
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lpld_labels.errors import ClusterError, LabelPoolError, WorkerDiedError
from lpld_labels.exec.job import Executor, Job, JobProgress, Outcome, Progress, Worker, naming_task, run_task

CONNECT_SECONDS = 10.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
NEWS_SECONDS = 0.5
"""How often workers are asked how far they are."""
STOP_SECONDS = 120.0
"""How long workers may take to make safe what they have in hand, once they are told to stop."""
MOST_LOSSES = 10
"""A task that has cost so many workers is given up, and so is a worker that cannot be set up."""
_GONE = object()
"""In place of a worker's answer: it was lost."""


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Which cluster, and what a task needs of it.

    address: HOST:PORT of the cluster's head; None to start Ray on this machine, for this job alone.
    workers: how many at most; None for as many as there is room for.
    gpus_per_task, cpus_per_task: what a worker holds while it lives; parts of a GPU may be shared.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_task: float = 0.0
    cpus_per_task: float = 1.0


class RaySession:
    """A connection to Ray; what it started goes when it is closed."""

    def __init__(self, settings: RaySettings) -> None:
        """Connect, or say in one line what is in the way."""
        self._settings = settings
        self.ray = _ray_module(local=_is_local(settings.address))
        self._ours = not self.ray.is_initialized()
        if self._ours:
            self._connect()
        try:
            self.workers = self._count_workers()
        except ClusterError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the cluster, or end it if it was started here."""
        if self._ours:
            self.ray.shutdown()

    def _connect(self) -> None:
        settings = self._settings
        quietly = {"log_to_driver": False, "configure_logging": False}
        # What Ray says of itself when it starts is no news of the job.
        logging.getLogger("ray").setLevel(logging.ERROR)
        if settings.address is None:
            cpus = max(os.cpu_count() or 1, int((settings.workers or 1) * settings.cpus_per_task + 0.999))
            self.ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quietly)
            return
        _require_listener(settings.address)
        try:
            self.ray.init(address=settings.address, **quietly)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _no_cluster(settings.address, str(error).partition("\n")[0]) from None

    def _count_workers(self) -> int:
        """Return how many workers there will be; refuse a cluster without room for one."""
        wanted = {"CPU": self._settings.cpus_per_task, "GPU": self._settings.gpus_per_task}
        wanted = {name: amount for name, amount in wanted.items() if amount > 0}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        room = sum(min(int(node.get(name, 0) / amount) for name, amount in wanted.items()) for node in nodes)
        if room == 0:
            raise ClusterError(
                "no machine of the cluster has room for a task",
                where=self._settings.address or "Ray on this machine",
                expected=", ".join(f"{amount:g} {name}" for name, amount in wanted.items()),
                got="; ".join(
                    ", ".join(f"{node.get(name, 0):g} {name}" for name in wanted) for node in nodes
                ),
                hint="ask for less (--cpus-per-task, --gpus-per-task), or add machines",
            )
        return self._settings.workers or room


def require_ray(settings: RaySettings) -> None:
    """Refuse, before anything is read, what cannot work: Ray not installed, an address that is none."""
    _ray_module(local=_is_local(settings.address))
    if settings.cpus_per_task <= 0 and settings.gpus_per_task <= 0:
        raise ClusterError(
            "a task must hold something", hint="give --cpus-per-task or --gpus-per-task above 0"
        )
    if settings.address is not None:
        _require_listener(settings.address)


def _ray_module(*, local: bool) -> types.ModuleType:
    """Import Ray: no usage reports, and of this machine alone only its own address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What Ray says about a future default is for its own developers.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if local:
        # Ray's name for "listen on 127.0.0.1 only, and do not replace it by an address others can reach".
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ClusterError(
            "Ray is not installed", hint="pip install 'lpld-labels[ray]', or use --engine local"
        ) from None


def _is_local(address: str | None) -> bool:
    return address is None or address.rpartition(":")[0] in _LOOPBACK


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
        hint="start one (ray start --head) and this machine's part of it, or leave out --ray-address",
    )


class RayExecutor(Executor):
    """Workers of a Ray cluster; a context manager. Ray is joined or started when it is first needed."""

    def __init__(self, settings: RaySettings) -> None:
        require_ray(settings)
        self._settings = settings
        self._session: RaySession | None = None

    @property
    def _connected(self) -> RaySession:
        if self._session is None:
            self._session = RaySession(self._settings)
        return self._session

    @property
    def workers(self) -> int:
        return self._connected.workers

    @property
    def on_this_machine(self) -> bool:
        return False

    def run(self, job: Job[Any], progress: Progress | None = None) -> list[Any]:
        """Do all tasks, whatever workers are lost on the way."""
        left = job.total - job.done
        if left <= 0:
            return []
        group = _WorkerGroup(self._connected, self._settings, job, JobProgress(job, progress))
        try:
            group.start(min(self.workers, left))
            group.work()
        except BaseException:
            group.stop()
            raise
        finally:
            group.dismiss()
        return group.facts

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


@dataclass(eq=False)
class _InHand:
    """A task, and how many workers it has cost."""

    task: Any
    losses: int = 0


@dataclass(eq=False)
class _Seat:
    """The place of one worker. actor: who sits there now; in_hand: its task, None while it is set up."""

    number: int
    actor: Any
    in_hand: _InHand | None = None
    failed_starts: int = 0


class _WorkerGroup:
    """The workers of one job. facts: what tasks gave back."""

    def __init__(
        self, session: RaySession, settings: RaySettings, job: Job[Any], standing: JobProgress
    ) -> None:
        self._ray = session.ray
        self._job, self._standing = job, standing
        self._new = iter(job.tasks)
        self._lost: deque[_InHand] = deque()
        self._seats: list[_Seat] = []
        self._idle: list[_Seat] = []
        # What is waited for: the seat whose set-up or task it is.
        self._awaited: dict[Any, _Seat] = {}
        self._news: dict[Any, _Seat] = {}
        self._last_news = time.monotonic()
        self.facts: list[Any] = []
        self._shared = self._ray.put(job.start)
        # Ray lets linear algebra have as many threads as a worker holds CPUs.
        self._actors = self._ray.remote(
            num_cpus=settings.cpus_per_task,
            num_gpus=settings.gpus_per_task,
            max_restarts=0,
            concurrency_groups={"work": 1, "control": 1},
        )(RayWorker)

    def start(self, count: int) -> None:
        for number in range(count):
            seat = _Seat(number, None)
            self._seats.append(seat)
            self._fill(seat)

    def _fill(self, seat: _Seat) -> None:
        """Put a new worker on a seat; it gets its first task when it is set up."""
        seat.actor = self._actors.remote([self._shared], str(Path.cwd()))
        self._awaited[seat.actor.set_up.options(concurrency_group="work").remote()] = seat

    def work(self) -> None:
        """Hand out tasks until all are done."""
        while True:
            self._hand_out()
            if not any(seat.in_hand for seat in self._awaited.values()) and self._peek() is None:
                return
            waited = [*self._awaited, *self._news]
            ready, _ = self._ray.wait(waited, timeout=NEWS_SECONDS)
            if ready:
                ready, _ = self._ray.wait(waited, num_returns=len(waited), timeout=0)
            for reference in ready:
                self._handle(reference)
            self._ask_for_news()

    def _hand_out(self) -> None:
        while self._idle:
            task = self._peek()
            if task is None:
                return
            self._lost.popleft()
            seat = self._idle.pop()
            seat.in_hand = task
            self._standing.begun(seat.number)
            method = seat.actor.do.options(concurrency_group="work")
            self._awaited[method.remote(task.task, task.losses > 0)] = seat

    def _peek(self) -> _InHand | None:
        """Return the next task, those that were lost first; it stays where it is."""
        if not self._lost:
            self._lost.extend(_InHand(task) for task in itertools.islice(self._new, 1))
        return self._lost[0] if self._lost else None

    def _handle(self, reference: Any) -> None:
        result = self._result(reference)
        if reference in self._news:
            seat = self._news.pop(reference)
            if result is not _GONE:
                self._standing.reached(seat.number, result)
            return
        seat = self._awaited.pop(reference)
        if result is _GONE:
            self._lose(seat)
        else:
            self._ended(seat, result)

    def _result(self, reference: Any) -> Any:
        """Return what a worker gave back, or _GONE."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except exceptions.RayTaskError as error:
            # A defect: its own traceback, from the worker, is of use.
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

    def _ended(self, seat: _Seat, result: Outcome | LabelPoolError | None) -> None:
        """A worker is set up, or has finished its task."""
        if isinstance(result, LabelPoolError):
            raise result if seat.in_hand is None else self._named(result, seat.in_hand)
        seat.failed_starts = 0
        seat.in_hand = None
        self._idle.append(seat)
        if result is not None:
            self._standing.ended(seat.number, result.units)
            if result.fact is not None:
                self.facts.append(result.fact)

    def _lose(self, seat: _Seat) -> None:
        """Replace a worker that is gone; its task comes first."""
        # It may only be out of reach: two must not do one task.
        self._ray.kill(seat.actor)
        lost, seat.in_hand = seat.in_hand, None
        if lost is None:
            seat.failed_starts += 1
            if seat.failed_starts >= MOST_LOSSES:
                raise self._died(f"worker {seat.number + 1} died {MOST_LOSSES} times before its first task")
        else:
            self._standing.lost(seat.number)
            lost.losses += 1
            if lost.losses >= MOST_LOSSES:
                raise self._named(self._died(f"{MOST_LOSSES} workers died"), lost)
            self._lost.appendleft(lost)
        self._fill(seat)

    def _died(self, problem: str) -> WorkerDiedError:
        return WorkerDiedError(
            problem,
            where=self._job.where,
            hint="finished work is kept; if memory ran out, let each task hold more "
            "(--cpus-per-task), then run the same command again",
        )

    def _named(self, error: LabelPoolError, in_hand: _InHand) -> LabelPoolError:
        return naming_task(error, self._job.name(in_hand.task))

    def _ask_for_news(self) -> None:
        """Ask all who are at work how far they are, unless they have yet to answer."""
        now = time.monotonic()
        if now - self._last_news < NEWS_SECONDS:
            return
        self._last_news = now
        asked = {seat.number for seat in self._news.values()}
        for seat in self._seats:
            if seat.in_hand is not None and seat.number not in asked:
                self._news[seat.actor.reached.options(concurrency_group="control").remote()] = seat

    def stop(self) -> None:
        """Tell all workers to stop and wait until they have made safe what they have in hand."""
        busy = [reference for reference, seat in self._awaited.items() if seat.in_hand is not None]
        for reference in busy:
            self._awaited[reference].actor.stop.options(concurrency_group="control").remote()
        if busy:
            self._ray.wait(busy, num_returns=len(busy), timeout=STOP_SECONDS)

    def dismiss(self) -> None:
        """End all workers."""
        for seat in self._seats:
            self._ray.kill(seat.actor)


class RayWorker:
    """What lives in a Ray worker: a job's worker, set up once, and a line to it while it works.

    Two threads call it, one at a time each: `work` sets up and does tasks, `control` asks how far they are.

    start: a list with Ray's reference to what sets the worker up; in a list, Ray leaves it alone until it is
    asked for. directory: where the command was given, for its paths may be relative.
    """

    def __init__(self, start: list[Any], directory: str) -> None:
        self._start = start
        self._directory = directory
        self._worker: Worker[Any] | None = None
        self._units = 0
        self._stop = False

    def set_up(self) -> LabelPoolError | None:
        """Load what tasks share. Errors for people are given back as they are, not as Ray's."""
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
            # Ray shows a worker only the GPUs that are its own.
            self._worker = start(0)
        except LabelPoolError as error:
            return error
        except ray.exceptions.RayError as error:
            # It could not be unpickled: what is missing here is told by the cause.
            cause = error.__cause__ or error
            return cause if isinstance(cause, LabelPoolError) else _not_set_up(cause)
        return None

    def do(self, task: Any, again: bool) -> Outcome | LabelPoolError | None:
        """Do a task; None if it was stopped."""
        if self._worker is None:
            raise RuntimeError("a worker is set up before its first task")
        self._units = 0
        try:
            return run_task(self._worker.do(task, again=again), self._tell)
        except LabelPoolError as error:
            return error

    def _tell(self, units: int) -> bool:
        self._units = units
        return not self._stop

    def reached(self) -> int:
        """Return how many units of the present task are finished."""
        return self._units

    def stop(self) -> None:
        """End the present task with what it has in hand."""
        self._stop = True


def _not_set_up(error: BaseException) -> ClusterError:
    return ClusterError(
        f"a worker cannot be set up: {error}".partition("\n")[0],
        hint="all machines of the cluster need the same versions and the same paths",
    )
