"""Writing pools: append batches, seal them shard by shard, publish them with one commit."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from lpld_labels.codecs import Codec
from lpld_labels.codecs.floats import Float16Codec
from lpld_labels.errors import (
    DuplicateBatchError,
    InvalidArgumentError,
    InvalidBatchError,
    PoolConflictError,
    PoolWriteError,
)
from lpld_labels.format.bounds import check_bounds, frame_of
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import LineageStep, Manifest, PoolHeader, require_readable
from lpld_labels.format.records import BatchKey, LabelBatch
from lpld_labels.format.schema import (
    MANIFEST_FILE,
    SHARD_BATCHES,
    SHARD_LABEL_BYTES,
    SHARD_VIEW_ROWS,
    Views,
)
from lpld_labels.io.storage import write_errors
from lpld_labels.pool.commit import commit_pool, merge_staged
from lpld_labels.pool.pace import Pace
from lpld_labels.pool.packing import ImageCarrier
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.staging import Receipts, StagingArea
from lpld_labels.pool.staging_plan import describe, require_same_plan
from lpld_labels.pool.views import require_drawn

log = logging.getLogger(__name__)


class StagedWriter:
    """Fills one pool with label batches.

    Several processes may open writers on the same path and append different batches; one of them
    calls `commit` when all are done. Until then nothing of the new work is visible to readers. A
    crash loses at most the batches since the last seal (`seal_seconds`); opening a writer on the
    same path again resumes, and ``key in writer`` tells what is already safe.

    path: local directory of the pool.
    views: whether the pool keeps its views, or leaves them to readers to draw (`require_drawn`).
    onto: the pool that is already there, opened, to add batches to; None to make a new one.
    purpose: what the work is for, as JSON values; kept with unfinished work (`StagingArea.purpose`).
    packed: brings the image files that the pool is to carry when it is published.
    shard_bytes: label bytes gathered in memory before a shard is sealed.
    seal_seconds: seal at least this often, None for the rule of all commands; the commit merges small shards.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        header: PoolHeader,
        images: ImageTable,
        codec: Codec | None = None,
        views: Views = "stored",
        onto: PoolReader | None = None,
        purpose: Mapping[str, Any] | None = None,
        packed: ImageCarrier | None = None,
        shard_bytes: int = SHARD_LABEL_BYTES,
        seal_seconds: float | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        require_readable(header, where=self.path)
        self.header = header
        self.images = images
        self.codec = codec if codec is not None else Float16Codec()
        self.views: Views = views
        self._frame = frame_of(header, images, views)
        self._packed = packed
        self._shard_bytes = shard_bytes
        self._pace = Pace(seal_seconds)
        self._pending: list[EncodedBatch] = []
        self._pending_bytes = 0
        self._pending_rows = 0
        if len(images) and int(images.classes.max()) >= header.classes:
            raise InvalidArgumentError(
                "image table has a class beyond the label's columns",
                expected=f"classes below {header.classes}",
                got=int(images.classes.max()),
            )
        self._keys = self._published(onto)
        self._staging = StagingArea(self.path)
        self._staging.prepare(header, self.codec, images, views=views, purpose=purpose)
        for shard in self._staging.sealed():
            self._keys.update(shard.keys)

    def _published(self, onto: PoolReader | None) -> set[BatchKey]:
        """Return the keys already published; refuse a pool that may not or cannot be extended."""
        if onto is None:
            with write_errors(self.path):
                if (self.path / MANIFEST_FILE).exists():
                    raise PoolConflictError(
                        "a pool is already here", where=self.path, hint="choose another path or extend it"
                    )
            return set()
        found = describe(onto.header, onto.codec, onto.images.digest(), onto.manifest.views)
        wanted = describe(self.header, self.codec, self.images.digest(), self.views)
        require_same_plan(found, wanted, where=str(self.path / MANIFEST_FILE))
        return set(onto.keys)

    def __contains__(self, key: object) -> bool:
        """Whether a batch is published, sealed or waiting to be sealed."""
        return key in self._keys

    @property
    def keys(self) -> frozenset[BatchKey]:
        """All batches that are published, sealed or waiting to be sealed."""
        return frozenset(self._keys)

    def append(self, batch: LabelBatch) -> None:
        """Encode a batch and queue it; seals a shard when enough has gathered."""
        if batch.classes != self.header.classes:
            raise InvalidBatchError(
                "wrong number of classes", where=batch.key, expected=self.header.classes, got=batch.classes
            )
        self.append_encoded(EncodedBatch.make(batch, self.codec.encode(batch.labels)))

    def append_encoded(self, batch: EncodedBatch) -> None:
        """Queue a batch that is already in this pool's codec (copying between pools)."""
        key, rows = batch.views.key, len(batch.views.images)
        if key in self._keys:
            raise DuplicateBatchError(
                "batch was already written",
                where=f"{self.path}, {key}",
                hint="skip keys for which `key in writer` is true",
            )
        if rows > self.header.batch_size:
            raise InvalidBatchError(
                "batch is too large",
                where=key,
                expected=f"at most {self.header.batch_size} rows",
                got=rows,
            )
        if batch.frame != self._frame:
            check_bounds(batch.views, self.images, self.header.augmentation)
            if self.views == "drawn":
                require_drawn(batch.views, self.header, self.images)
        self._pending.append(batch)
        self._keys.add(key)
        self._pending_bytes += batch.nbytes
        self._pending_rows += rows
        if (
            self._pending_bytes >= self._shard_bytes
            or self._pending_rows >= SHARD_VIEW_ROWS
            or len(self._pending) >= SHARD_BATCHES
            or self._pace.due()
        ):
            self.flush()

    def extend(self, batches: Iterable[LabelBatch]) -> None:
        """Append batches, passing over those that are already safe."""
        for batch in batches:
            if batch.key not in self:
                self.append(batch)

    def flush(self) -> None:
        """Seal what has gathered, so that a crash cannot lose it."""
        if self._pending:
            shard = self._staging.seal(self._pending, self.codec, self.header.classes)
            log.debug("sealed %s with %d batches", shard.name, len(self._pending))
            self._pending = []
            self._pending_bytes = self._pending_rows = 0
        self._pace.saved()

    def receipts(self) -> Receipts:
        """Return receipts, for whoever commits, of the shards sealed since this was last asked."""
        return self._staging.receipts()

    def believe(self, receipts: Iterable[Receipts]) -> None:
        """Spare the commit the reading of shards that this command's own workers have sealed."""
        for some in receipts:
            self._staging.believe(some)

    def merge(self) -> None:
        """Merge small sealed shards, as `commit` will; what is staged then weighs what the pool will."""
        self.flush()
        merge_staged(self._staging, self.codec, self.header.classes, shard_bytes=self._shard_bytes)

    def staged_bytes(self) -> int:
        """Return the bytes of all sealed shards, by this and other writers."""
        kept = self.views == "stored"
        return sum(s.labels.bytes + (s.views.bytes if kept else 0) for s in self._staging.sealed())

    def commit(self, *, lineage: tuple[LineageStep, ...] | None = None) -> Manifest:
        """Publish everything sealed so far, by this and other writers, and return the manifest.

        lineage: replaces the header's lineage, e.g. when a pool was extended.
        """
        self.flush()
        header = self.header if lineage is None else replace(self.header, lineage=lineage)
        return commit_pool(
            self._staging,
            header,
            self.codec,
            self.images,
            shard_bytes=self._shard_bytes,
            packed=self._packed,
        )

    def __enter__(self) -> StagedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Seal what has gathered. Leaving without `commit` publishes nothing, with or without an error."""
        if not isinstance(error, PoolWriteError):
            self.flush()


def missing_keys(writer: StagedWriter, wanted: Iterable[BatchKey]) -> list[BatchKey]:
    """Return the wanted keys that are not safe yet, in the order given."""
    safe = writer.keys
    return [key for key in wanted if key not in safe]
