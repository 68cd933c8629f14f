"""The engine of many machines: one Ray actor per worker, each with one task at a time.

What tasks share (weights, image tables) is put into Ray's store once and fetched once per machine. A lost
worker is replaced and its task begun again by whoever is free; a replacement that finds no room waits for it
while the others go on. Nothing but tasks, counts and small facts passes through this process.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lpld_labels.errors import LabelPoolError, WorkerDiedError
from lpld_labels.exec.job import Engine, Job, Outcome, Progress, Standing, naming_task
from lpld_labels.exec.ray_session import RaySession, RaySettings, require_ray
from lpld_labels.exec.ray_worker import Host

NEWS_SECONDS = 0.5
"""How often workers are asked how far they are."""
STOP_SECONDS = 120.0
"""How long workers may take to make safe what they have in hand, once they are told to stop."""
MOST_LOSSES = 10
"""A task that has cost so many workers is given up, and so is a worker that cannot be set up."""


_GONE = object()
"""In place of a worker's answer: it was lost."""


class RayEngine(Engine):
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
        group = _WorkerGroup(self._connected, self._settings, job, Standing(job, progress))
        try:
            group.start(min(self.workers, left))
            group.work()
        except BaseException:
            group.stop()
            raise
        finally:
            group.dismiss()
        return group.facts

    def __enter__(self) -> RayEngine:
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

    def __init__(self, session: RaySession, settings: RaySettings, job: Job[Any], standing: Standing) -> None:
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
        )(Host)

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
