"""Going on with an import: what is sealed already must be what the label files give now.

Nothing in a label folder says whose labels it holds: another teacher's has files of the same names and
sizes. So the files of all sealed batches are read again, and the batches' digests compared. Nothing is kept
about the files for that: a folder may be moved, copied or repaired between two sittings, and other ways to
find image ids are noticed like other labels. It costs the reading of those files again, shared by all
workers, and no writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lpld_labels.errors import StagingMismatchError
from lpld_labels.exec.job import Engine, Job, Progress, Steps
from lpld_labels.format import arrow
from lpld_labels.format.records import BatchKey
from lpld_labels.interop.importers import work
from lpld_labels.interop.importers.base import Unit
from lpld_labels.pool.staging import StagingArea
from lpld_labels.transforms.engine import Draft, batches_named, batches_per_shard, gathered
from lpld_labels.transforms.outputs import OVERWRITE_HINT

Digests = dict[BatchKey, set[bytes]]
"""Of the batches that are sealed; two writers may have sealed the same one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SealedUnit:
    """A unit of which batches are sealed. digests: theirs."""

    unit: Unit
    digests: Digests

    @property
    def keys(self) -> tuple[BatchKey, ...]:
        return tuple(self.digests)


def resumed_batches(
    draft: Draft,
    source: work.Job,
    units: Iterable[Unit],
    *,
    engine: Engine,
    progress: Progress | None,
) -> int:
    """Return how many batches of an import are sealed; refuse unfinished work of another import.

    source: reads the label files. units: all that is to be imported.
    """
    draft.writer()  # refuses what is for another pool
    sealed = _sealed(draft.out)
    if not sealed:
        return 0
    unknown = set(sealed)
    size = engine.task_size(len(sealed), largest=batches_per_shard(draft.header))
    job = Job(
        start=partial(_started, source, draft.out),
        tasks=gathered(_comparable(units, sealed, unknown), size),
        name=lambda task: batches_named(task[0].keys[0], task[-1].keys[-1]),
        total=draft.batches,
        done=0,
        where=draft.out,
    )
    engine.run(job, progress)
    if unknown:
        raise _other_import(draft.out, f"the label folder has nothing for {min(unknown)}")
    return len(sealed)


def _sealed(pool: Path) -> Digests:
    found: Digests = {}
    for shard in StagingArea(pool).sealed():
        for key, digest in zip(shard.keys, arrow.binaries(shard.batches["digest"]), strict=True):
            found.setdefault(key, set()).add(digest)
    return found


def _comparable(units: Iterable[Unit], sealed: Digests, unknown: set[BatchKey]) -> Iterator[SealedUnit]:
    """Yield the units to compare, and take their batches from those of which nothing is known."""
    for unit in units:
        digests = {key: sealed[key] for key in unit.keys if key in sealed}
        unknown.difference_update(digests)
        if digests:
            yield SealedUnit(unit=unit, digests=digests)


def _started(source: work.Job, out: Path, number: int) -> _Comparer:
    del number  # all workers are alike
    return _Comparer(source, out)


@dataclass(frozen=True)
class _Comparer:
    """Reads units again and compares what comes of them with what is sealed."""

    source: work.Job
    out: Path

    def do(self, task: Sequence[SealedUnit], *, again: bool) -> Steps:
        """Compare some units; nothing is written, so it does not matter whether it is done again."""
        del again
        for piece in task:
            now = {batch.key: batch.digest for batch in self.source.read_again(piece.unit)}
            for key, digests in piece.digests.items():
                if digests != {now.get(key)}:
                    files = [path.relative_to(self.source.source).as_posix() for path in piece.unit.files]
                    more = f" (and {len(files) - 1} more)" if len(files) > 1 else ""
                    raise _other_import(self.out, f"{key} is not what {files[0]}{more} gives")
            yield len(piece.keys)


def _other_import(out: Path, why: str) -> StagingMismatchError:
    return StagingMismatchError(
        f"unfinished work of another import is here: {why}",
        where=out,
        hint=f"finish it with its own label files and options, or {OVERWRITE_HINT}",
    )
