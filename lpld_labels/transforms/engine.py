"""Making a pool out of batches, wherever they come from: prune, encode, merge and import all do it here.

A `Draft` says what the pool will be and how its batches are got, piece by piece. Pieces that are not
staged yet are done, in this process or in several; the staged pool may be judged, and another draft tried
instead; then the caller commits. Whatever interrupts a command, the same command goes on from there, and
once more when all is done it finds its own pool and does nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from lpld_labels.codecs import Codec
from lpld_labels.errors import (
    InvalidArgumentError,
    PoolConflictError,
    PoolFormatError,
    StagingMismatchError,
)
from lpld_labels.exec.job import Engine, Job, Progress, Steps
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import LineageStep, Manifest, PoolHeader
from lpld_labels.format.records import BatchKey
from lpld_labels.format.schema import MANIFEST_FILE, SHARD_LABEL_BYTES, STAGING_DIRECTORY, Views
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.io.addresses import is_address
from lpld_labels.pool.commit import finish_commit
from lpld_labels.pool.own_files import require_own_files
from lpld_labels.pool.packing import ImageCarrier
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.staged_writer import StagedWriter
from lpld_labels.pool.staging import StagingArea
from lpld_labels.transforms.outputs import (
    OVERWRITE_HINT,
    delete_pool,
    require_apart,
)

log = logging.getLogger(__name__)


class Piece(Protocol):
    """Work that is done as one; `keys` are the batches that come of it."""

    @property
    def keys(self) -> Sequence[BatchKey]: ...


AnyPiece = TypeVar("AnyPiece", bound=Piece)


class Source(Protocol):
    """Gives the batches of a piece. Pickled for other processes."""

    def __call__(self, piece: Any, /) -> Iterable[EncodedBatch]: ...


@runtime_checkable
class Foresighted(Protocol):
    """A source that works better if it knows what comes next."""

    def expect(self, pieces: Sequence[Any]) -> None:
        """Learn which pieces will be asked for, in this order."""


@dataclass(frozen=True)
class Keys:
    """A piece of batches that are known by their keys."""

    keys: tuple[BatchKey, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Draft:
    """A pool to be.

    pieces: gives the work, in the order in which it is best done. batches: how many come of it.
    keys: all that may be in the pool; None if any may. purpose: the command and its settings, as JSON
    values; unfinished work of the same purpose that does not fit (an earlier draft's) is given up.
    packed: brings the images that the pool is to carry.
    """

    out: Path
    header: PoolHeader
    images: ImageTable
    codec: Codec
    views: Views = "stored"
    source: Source
    pieces: Callable[[], Iterable[Piece]]
    batches: int
    purpose: Mapping[str, Any]
    packed: ImageCarrier | None = None
    keys: Collection[BatchKey] | None = None

    @property
    def writer(self) -> Callable[[], StagedWriter]:
        """Opens a writer on the pool; can be sent to another process."""
        return partial(
            StagedWriter,
            self.out,
            header=self.header,
            images=self.images,
            codec=self.codec,
            views=self.views,
            purpose=self.purpose,
            packed=self.packed,
        )


Judge = Callable[[StagedWriter], Draft | None]
"""Looks at a staged pool and returns the draft to try instead of it, or None to keep it."""


def stage(
    draft: Draft,
    *,
    judge: Judge | None = None,
    engine: Engine = ONE_PROCESS,
    progress: Progress | None = None,
) -> StagedWriter:
    """Do what is missing of a draft, and return the writer to commit it with.

    judge: may put another draft in its place, again and again, when it sees what has come of the last.
    """
    writer = _staged(draft, engine, progress)
    if judge is None:
        return writer
    # Merged first, so that the same batches weigh the same however often the work was interrupted.
    writer.merge()
    try:
        other = judge(writer)
    except InvalidArgumentError:
        StagingArea(draft.out).abandon()
        raise
    if other is None:
        return writer
    log.info("%s: trying %d batches, codec %s", draft.out, other.batches, other.codec.name)
    StagingArea(draft.out).abandon(keep_checkpoint=True)
    return stage(other, judge=judge, engine=engine, progress=progress)


def _staged(draft: Draft, engine: Engine, progress: Progress | None) -> StagedWriter:
    writer = _joined(draft)
    done = len(writer.keys)
    left = draft.batches - done
    size = left if engine.workers == 1 else engine.task_size(left, largest=batches_per_shard(draft.header))
    job = Job(
        start=partial(_started, draft.writer, draft.source),
        here=lambda: _Filler(draft.writer, draft.source, writer),
        tasks=gathered(_todo(writer, draft.pieces()), size),
        name=_task_name,
        total=draft.batches,
        done=done,
        where=draft.out,
    )
    receipts = engine.run(job, progress)
    # Opened again, it knows what others have sealed.
    last = writer if len(writer.keys) >= draft.batches else draft.writer()
    last.believe(receipts)
    return last


def published(
    out: str | os.PathLike[str],
    is_ours: Callable[[Manifest], bool],
    *,
    purpose: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Manifest | None:
    """Return the pool's manifest if this very command has already written it, or None if it may write.

    What an interruption has left of it is cleared away. Anything else that lies there is refused, or
    deleted to `overwrite` it: a pool, and unfinished work that is not for this purpose.
    """
    path = Path(out).absolute()
    try:
        manifest = _ours_if_any(path, is_ours)
    except (PoolConflictError, PoolFormatError):
        if not overwrite:
            raise
        delete_pool(path, keep_checkpoint=True)
        return None
    if manifest is not None:
        finish_commit(path, manifest)
    elif overwrite and StagingArea(path).purpose() != as_json(purpose):
        delete_pool(path, keep_checkpoint=True)
    return manifest


def _ours_if_any(path: Path, is_ours: Callable[[Manifest], bool]) -> Manifest | None:
    file = path / MANIFEST_FILE
    if file.is_file():
        manifest = Manifest.parse(file.read_bytes(), where=str(file))
        if is_ours(manifest):
            return manifest
        raise PoolConflictError("another pool is already here", where=path, hint=OVERWRITE_HINT)
    if path.exists() and not _may_be_ours(path):
        raise PoolConflictError("something is already here", where=path, hint=OVERWRITE_HINT)
    return None


def require_possible(
    out: str | os.PathLike[str], pool: PoolReader, *others: PoolReader, overwrite: bool = False
) -> None:
    """Refuse, before any work is done, a path where no command on these pools may write."""
    require_apart(out, *(reader.location for reader in (pool, *others)))
    parent = pool.manifest.content_digest

    def may_be(found: Manifest) -> bool:
        return any(step.parent_digest == parent for step in found.header.lineage)

    require_free(out, may_be, overwrite=overwrite)


def require_free(
    out: str | os.PathLike[str], may_be_ours: Callable[[Manifest], bool], *, overwrite: bool
) -> None:
    """Refuse a path with anything but what a command may have left there, or, to overwrite it, a pool.

    What is at an address is looked at when it is about to be written to (`destination`).
    """
    if is_address(out):
        return
    if overwrite:
        require_own_files(Path(out).absolute())
    else:
        _ours_if_any(Path(out).absolute(), may_be_ours)


def same_lineage(found: Sequence[LineageStep], wanted: Sequence[LineageStep]) -> bool:
    """Whether two pools have the same past, as files tell it."""
    return bool(as_json([asdict(step) for step in found]) == as_json([asdict(step) for step in wanted]))


def as_json(document: Any) -> Any:
    """Return a document as it comes back from a file."""
    return from_json(to_json(document), where="document")


def _may_be_ours(path: Path) -> bool:
    """Whether this is an empty directory or one of unfinished work, without anything else."""
    if not (path / STAGING_DIRECTORY).is_dir():
        return path.is_dir() and not any(path.iterdir())
    require_own_files(path)
    return True


def _joined(draft: Draft) -> StagedWriter:
    """Open the writer on the draft's own unfinished work; that of an earlier draft is given up."""
    area = StagingArea(draft.out)
    ours = area.purpose() == as_json(draft.purpose)
    try:
        writer = draft.writer()
        strangers = sorted(writer.keys - set(draft.keys)) if draft.keys is not None else []
        if not strangers:
            return writer
        problem = StagingMismatchError(
            f"unfinished work of another selection is here: it holds {strangers[0]}",
            where=draft.out,
            expected="batches of this selection only",
            hint=f"finish it with its own settings, or {OVERWRITE_HINT}",
        )
    except StagingMismatchError as error:
        problem = error
    if not ours:
        raise problem
    area.abandon(keep_checkpoint=True)
    return draft.writer()


def _todo(writer: StagedWriter, pieces: Iterable[Piece]) -> Iterator[Piece]:
    safe = writer.keys
    return (piece for piece in pieces if not safe.issuperset(piece.keys))


def batches_per_shard(header: PoolHeader) -> int:
    """Return how many batches of raw labels fill a shard."""
    return max(1, SHARD_LABEL_BYTES // (2 * header.classes * header.batch_size))


def gathered(pieces: Iterable[AnyPiece], batches: int) -> Iterator[list[AnyPiece]]:
    """Gather pieces until they make up the given number of batches."""
    task: list[AnyPiece] = []
    size = 0
    for piece in pieces:
        task.append(piece)
        size += len(piece.keys)
        if size >= batches:
            yield task
            task, size = [], 0
    if task:
        yield task


def _task_name(task: Sequence[Piece]) -> str:
    return batches_named(task[0].keys[0], task[-1].keys[-1])


def batches_named(first: BatchKey, last: BatchKey) -> str:
    """Return what people call the batches from one to another."""
    return str(first) if first == last else f"the batches from {first} to {last}"


def _started(writer: Callable[[], StagedWriter], source: Source, number: int) -> _Filler:
    del number  # all workers are alike
    return _Filler(writer, source, writer())


class _Filler:
    """Writes pieces of a draft into a writer of its own; each task is sealed."""

    def __init__(self, reopen: Callable[[], StagedWriter], source: Source, writer: StagedWriter) -> None:
        self._reopen, self._source, self._writer = reopen, source, writer

    def do(self, task: Sequence[Piece], *, again: bool) -> Steps:
        """Write what is missing of some pieces."""
        if again:
            self._writer = self._reopen()
        if isinstance(self._source, Foresighted):
            self._source.expect(task)
        with self._writer as writer:
            for piece in task:
                for batch in self._source(piece):
                    if batch.views.key not in writer:
                        writer.append_encoded(batch)
                yield len(piece.keys)
        return self._writer.receipts()
