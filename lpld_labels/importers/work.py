"""Doing the units of a plan: in this process, or in several that write to the same pool."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

from lpld_labels.errors import LabelPoolError, PoolWriteError, WorkerDiedError
from lpld_labels.importers.base import ImportTarget, Unit
from lpld_labels.importers.formats import FORMATS
from lpld_labels.importers.report import Hole, HoleLog
from lpld_labels.schema import SHARD_LABEL_BYTES
from lpld_labels.writer import PoolWriter

Progress = Callable[[int, int], None]
_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What a worker needs to know, once.

    source, pool: the label folder and the pool. log: where files that are passed over are written down;
    None to stop at the first one.
    """

    format: str
    source: Path
    pool: Path
    target: ImportTarget
    log: HoleLog | None

    def writer(self) -> PoolWriter:
        """Open a writer on the pool."""
        target = self.target
        return PoolWriter(self.pool, header=target.header, images=target.images, codec=target.codec)


def do_units(
    job: Job, units: Sequence[Unit] | Iterator[Unit], writer: PoolWriter, tick: Callable[[int], bool]
) -> None:
    """Read units and append their batches; `tick` is told how many are done and says whether to go on."""
    kind = FORMATS[job.format]
    for unit in units:

        def on_bad(path: Path, error: LabelPoolError, unit: Unit = unit) -> None:
            if job.log is None:
                raise error
            key = unit.keys[0] if len(unit.files) == 1 else None
            job.log.add(Hole(file=path.relative_to(job.source).as_posix(), why=error.problem, key=key))

        if not all(key in writer for key in unit.keys):
            for batch in kind.read(unit, job.target, on_bad):
                if batch.key not in writer:
                    writer.append_encoded(batch)
        if not tick(len(unit.keys)):
            return


def run_here(job: Job, units: Iterator[Unit], writer: PoolWriter, *, total: int, progress: Progress) -> None:
    """Do all units in this process."""
    done = 0

    def tick(batches: int) -> bool:
        nonlocal done
        done += batches
        progress(done, total)
        return True

    with writer:
        do_units(job, units, writer, tick)


def run_parallel(job: Job, units: Iterator[Unit], *, jobs: int, total: int, progress: Progress) -> None:
    """Do all units in `jobs` processes. Each task is a run of neighbours that fills about one shard."""
    context = multiprocessing.get_context("spawn")
    done, stop = context.Value("q", 0), context.Event()
    tasks = _tasks(units, _task_size(job.target, jobs, total))
    running: set[Future[None]] = set()
    with ProcessPoolExecutor(jobs, context, _start_worker, (job, done, stop)) as pool:
        try:
            while True:
                # A few tasks ahead keep every process busy; more would hold ids of the whole folder.
                running |= {pool.submit(_do_task, task) for task in islice(tasks, jobs + 1 - len(running))}
                if not running:
                    break
                finished, running = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                progress(done.value, total)
        except BrokenProcessPool:
            raise WorkerDiedError(
                "a process of the import was killed",
                where=job.source,
                hint="run again to go on where it stopped; with fewer --jobs if memory ran out",
            ) from None
        finally:
            # On an error or Ctrl-C the others seal what they have and return.
            stop.set()
            for future in running:
                future.cancel()


def _task_size(target: ImportTarget, jobs: int, total: int) -> int:
    """Return how many batches a task has: about one full shard, fewer if there would be too few tasks."""
    row_bytes = target.header.classes * 2
    full = max(1, SHARD_LABEL_BYTES // (row_bytes * target.header.batch_size))
    return max(1, min(full, -(-total // jobs)))


def _tasks(units: Iterator[Unit], batches: int) -> Iterator[list[Unit]]:
    """Gather units until they make up the given number of batches."""
    task: list[Unit] = []
    gathered = 0
    for unit in units:
        task.append(unit)
        gathered += len(unit.keys)
        if gathered >= batches:
            yield task
            task, gathered = [], 0
    if task:
        yield task


_worker: tuple[Job, PoolWriter, Callable[[int], bool]] | None = None


def _start_worker(job: Job, done: Synchronized[int], stop: Event) -> None:
    """Open this process's writer; Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def tick(batches: int) -> bool:
        with done.get_lock():
            done.value += batches
        return not stop.is_set()

    global _worker  # noqa: PLW0603  (a process pool has no other place for what its workers share)
    _worker = (job, job.writer(), tick)


def _do_task(units: list[Unit]) -> None:
    if _worker is None:
        raise RuntimeError("worker was not started")
    job, writer, tick = _worker
    try:
        do_units(job, units, writer, tick)
    except PoolWriteError:
        raise
    except BaseException:
        writer.flush()
        raise
    writer.flush()
