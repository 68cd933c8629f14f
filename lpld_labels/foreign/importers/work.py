"""Doing the units of a plan: in this process, or in several that write to the same pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lpld_labels.errors import LabelPoolError, PoolWriteError
from lpld_labels.foreign.importers.base import ImportTarget, Unit
from lpld_labels.foreign.importers.formats import FORMATS
from lpld_labels.foreign.importers.report import Hole, HoleLog
from lpld_labels.format.schema import SHARD_LABEL_BYTES
from lpld_labels.pool.writer import PoolWriter
from lpld_labels.processes import Tell, work_in_processes

Progress = Callable[[int, int], None]


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
    done = 0

    def heard(batches: int) -> None:
        nonlocal done
        done += batches
        progress(done, total)

    tasks = _tasks(units, _task_size(job.target, jobs, total))
    work_in_processes(partial(_Importer, job), tasks, processes=jobs, heard=heard, where=job.source)


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


class _Importer:
    """Lives in a process of its own, with a writer of its own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._writer = job.writer()

    def __call__(self, units: list[Unit], tell: Tell) -> None:
        try:
            do_units(self._job, units, self._writer, tell)
        except PoolWriteError:
            raise
        except BaseException:
            self._writer.flush()
            raise
        self._writer.flush()
