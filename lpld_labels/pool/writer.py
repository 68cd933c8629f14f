"""Write pools batch by batch: append batches in any order, then commit once.

This is for programs that do not know their batches in advance. Commands use a `PoolPlan` (plan.py) instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from lpld_labels.codecs import Codec
from lpld_labels.codecs.floats import Float16Codec
from lpld_labels.errors import InvalidBatchError, PoolConflictError, PoolWriteError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import LineageStep, Manifest, PoolHeader
from lpld_labels.format.records import LabelBatch, check_labels
from lpld_labels.format.schema import MANIFEST_FILE, SHARD_BATCHES, SHARD_LABEL_BYTES, SHARD_VIEW_ROWS, Views
from lpld_labels.pool.packing import ImageCarrier
from lpld_labels.pool.plan import PoolPlan
from lpld_labels.pool.publish import publish
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.unfinished import unfinished


class PoolWriter:
    """Writes a new pool of label batches.

    Readers see nothing before `commit`. A crash loses the batches since the last finished shard. A writer
    with the same arguments resumes; ``key in writer`` is true for batches that were already written.

    path: local directory of the pool, which must not exist yet.
    views: whether the pool stores its views, or readers draw them (`require_drawn`).
    packed: function that writes image files into the pool.
    shard_bytes, shard_batches: a shard ends with the first batch that reaches one of these limits.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        header: PoolHeader,
        images: ImageTable,
        codec: Codec | None = None,
        views: Views = "stored",
        packed: ImageCarrier | None = None,
        shard_bytes: int = SHARD_LABEL_BYTES,
        shard_batches: int = SHARD_BATCHES,
    ) -> None:
        self.path = Path(path).resolve()
        self._plan = PoolPlan(
            out=self.path,
            header=header,
            images=images,
            codec=codec if codec is not None else Float16Codec(),
            views=views,
            source=iter,
            shards=(),
            settings={"writer": True},
            packed=packed,
        )
        self._shard_bytes, self._shard_batches = shard_bytes, shard_batches
        self._pending: list[EncodedBatch] = []
        self._pending_bytes = self._pending_rows = 0
        with contextlib.ExitStack() as stack:
            self._work = stack.enter_context(unfinished(self.path))
            if (self.path / MANIFEST_FILE).exists():
                raise PoolConflictError("a pool is already here", where=self.path, hint="choose another path")
            self._work.begin(self._plan.identity())
            self._records = self._work.records(self._work.numbers(), checked=True)
            self._keys = {key for record in self._records.values() for key in record.keys}
            self._writer = self._plan.writer(self._work.directory)
            self._open = stack.pop_all()

    def __contains__(self, key: object) -> bool:
        """Return whether a batch was appended by this writer, or before an interruption."""
        return key in self._keys

    def append(self, batch: LabelBatch) -> None:
        """Encode and queue a batch; write a shard when enough batches are pending."""
        header = self._plan.header
        if batch.classes != header.classes:
            raise InvalidBatchError(
                "wrong number of classes", where=batch.key, expected=header.classes, got=batch.classes
            )
        check_labels(batch.labels, batch.key, batch.images, header.label_kind)
        self.append_encoded(EncodedBatch.make(batch, self._plan.codec.encode(batch.labels)))

    def append_encoded(self, batch: EncodedBatch) -> None:
        if batch.key in self._keys:
            raise PoolConflictError(
                "batch was already written",
                where=f"{self.path}, {batch.key}",
                hint="skip keys for which `key in writer` is true",
            )
        self._writer.check(batch)
        self._pending.append(batch)
        self._keys.add(batch.key)
        self._pending_bytes += batch.nbytes
        self._pending_rows += batch.views.rows
        if (
            self._pending_bytes >= self._shard_bytes
            or self._pending_rows >= SHARD_VIEW_ROWS
            or len(self._pending) >= self._shard_batches
        ):
            self._flush()

    def extend(self, batches: Iterable[LabelBatch]) -> None:
        """Append batches; skip those that were already written."""
        for batch in batches:
            if batch.key not in self:
                self.append(batch)

    def commit(self, *, lineage: tuple[LineageStep, ...] | None = None) -> Manifest:
        """Publish the pool with all appended batches. lineage: replaces the lineage in the header."""
        self._flush()
        plan = self._plan
        if lineage is not None:
            plan = replace(plan, header=replace(plan.header, lineage=lineage))
        manifest = publish(plan, self._work, [self._records[number] for number in sorted(self._records)])
        self._open.close()
        return manifest

    def close(self) -> None:
        """Write pending batches, so that a later writer can resume, and release the lock."""
        with self._open:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            number = max(self._records, default=-1) + 1
            self._writer.write(number, self._pending)
            self._records |= self._work.records([number], checked=False)
            self._pending, self._pending_bytes, self._pending_rows = [], 0, 0

    def __enter__(self) -> PoolWriter:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Close the writer. Without `commit`, nothing is published."""
        if isinstance(error, PoolWriteError):
            self._pending = []
        self.close()
