"""Carrying out the plan in processes of one thread each. They can be stopped at any time.

A process holds the lock of its task from before it checks whether the task is done until it has written the
outcome, so no task is done twice, even by separate runs. Students and teachers resume from their last
checkpoint, images from their last group, a pool from its last shard. A check of recovery starts again.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from benchmarks.accuracy.cells import Cell, Record
from benchmarks.accuracy.decide import decisions
from benchmarks.accuracy.plan import GROUPS, Plan, Task, tasks
from benchmarks.accuracy.settle import check_recovery
from benchmarks.accuracy.store import Store

_WATCH_SECONDS = 2.0
_BUSY_SECONDS = 20.0
_MOST_DEATHS = 10


@dataclass(frozen=True, kw_only=True)
class Place:
    """The results file, the work directory (teachers, images, pools), and the data."""

    store: Store
    work: Path
    data: Path | None = None


def run_plan(plan: Plan, place: Place, *, groups: Sequence[str] = GROUPS, workers: int = 1) -> int:
    """Do the remaining tasks of some groups; return how many failed. The next run retries those.

    Killed processes are replaced, up to a limit.
    """
    for _ in range(_MOST_DEATHS):
        try:
            return _run(plan, place, groups, workers)
        except BrokenProcessPool:
            say("a process was killed; its task is resumed")
    return len(left(plan, place.store, groups))


def _run(plan: Plan, place: Place, groups: Sequence[str], workers: int) -> int:
    failed: set[str] = set()
    busy: set[str] = set()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_prepare, initargs=(os.getpid(),)) as processes:
        running: dict[Future[str], Task] = {}
        while True:
            away = failed | busy | {task.key for task in running.values()}
            todo = [task for task in left(plan, place.store, groups) if task.key not in away]
            for task in todo[: workers - len(running)]:
                running[processes.submit(do_task, plan, place, task)] = task
            if not running and busy:
                # Another run is doing the next tasks.
                time.sleep(_BUSY_SECONDS)
                busy.clear()
                continue
            if not running:
                return len(failed)
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                task = running.pop(future)
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    raise error
                came = f"failed: {error!r}" if error is not None else future.result()
                failed |= {task.key} if error is not None else set()
                busy |= {task.key} if came == BUSY else set()
                say(f"{task}: {came}")


BUSY = "another run is doing it"


def left(plan: Plan, store: Store, groups: Sequence[str] = GROUPS) -> list[Task]:
    """Return the known tasks that are not done."""
    results = store.read()
    done = results.done
    return [task for _, task in tasks(plan, decisions(plan, results), groups) if task.key not in done]


def do_task(plan: Plan, place: Place, task: Task) -> str:
    """Do one task unless it is done or in progress, store its outcome, and return a summary."""
    from benchmarks.accuracy.cell import TooFewBytesError

    locks = place.work / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(task.key.encode()).hexdigest()[:16]
    try:
        with FileLock(locks / f"task-{name}.lock", timeout=0):
            if task.key in place.store.read().done:
                return "was done by another run"
            try:
                return _work(plan, place, task)
            except TooFewBytesError as error:
                place.store.add(task, str(error))
                return f"refused: {error}"
    except Timeout:
        return BUSY


def _work(plan: Plan, place: Place, task: Task) -> str:
    from benchmarks.accuracy.cell import forget_student, train_cell
    from benchmarks.accuracy.work import Workshop
    from benchmarks.common.harness import commit

    workshop = Workshop.open(place.work, plan.scale, place.data)
    if isinstance(task, Cell):
        found = train_cell(workshop, task)
        place.store.add(task, Record(cell=task, commit=commit(), **asdict(found)))
        forget_student(workshop, task)
        return f"{found.top1:.1%} in {found.seconds:.0f} s"
    checked = check_recovery(workshop, task)
    place.store.add(task, checked)
    return f"loss {checked.loss:.4g} in {checked.seconds:.0f} s"


def _prepare(parent: int) -> None:
    """Limit a process to one thread, and end it when its parent ends."""
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def say(text: str) -> None:
    """Print a line with the time on stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
