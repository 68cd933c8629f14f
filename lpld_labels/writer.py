"""Writing pools: append batches, seal them shard by shard, publish them with one commit."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from lpld_labels.codecs import Codec
from lpld_labels.codecs.floats import Float16Codec
from lpld_labels.commit import commit_pool
from lpld_labels.errors import (
    DuplicateBatchError,
    InvalidArgumentError,
    InvalidBatchError,
    PoolConflictError,
    PoolWriteError,
)
from lpld_labels.images import ImageTable
from lpld_labels.manifest import LineageStep, Manifest, PoolHeader
from lpld_labels.reader import PoolReader
from lpld_labels.records import BatchKey, LabelBatch, ViewBatch
from lpld_labels.schema import MANIFEST_FILE, SHARD_LABEL_BYTES, SHARD_VIEW_ROWS
from lpld_labels.shard import EncodedBatch, seal_shard
from lpld_labels.staging import StagingArea, describe, require_same_plan
from lpld_labels.storage import write_errors

log = logging.getLogger(__name__)


class PoolWriter:
    """Fills one pool with label batches.

    Several processes may open writers on the same path and append different batches; one of them
    calls `commit` when all are done. Until then nothing of the new work is visible to readers. A
    crash loses at most the batches since the last seal (`seal_seconds`); opening a writer on the
    same path again resumes, and ``key in writer`` tells what is already safe.

    path: local directory of the pool.
    extend: allow adding batches to a pool that is already there.
    shard_bytes: label bytes gathered in memory before a shard is sealed.
    seal_seconds: seal at least this often; the commit merges small shards.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        header: PoolHeader,
        images: ImageTable,
        codec: Codec | None = None,
        extend: bool = False,
        shard_bytes: int = SHARD_LABEL_BYTES,
        seal_seconds: float = 120.0,
    ) -> None:
        self.path = Path(path).absolute()
        self.header = header
        self.images = images
        self.codec = codec if codec is not None else Float16Codec()
        self._shard_bytes = shard_bytes
        self._seal_seconds = seal_seconds
        self._pending: list[EncodedBatch] = []
        self._pending_bytes = 0
        self._pending_rows = 0
        self._last_seal = time.monotonic()
        if len(images) and int(images.classes.max()) >= header.classes:
            raise InvalidArgumentError(
                "image table has a class beyond the label's columns",
                expected=f"classes below {header.classes}",
                got=int(images.classes.max()),
            )
        self._published = self._join_existing(extend)
        with write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._staging = StagingArea(self.path)
        self._staging.prepare(header, self.codec, images)
        self._keys = set(self._published)
        for shard in self._staging.sealed():
            self._keys.update(shard.keys)

    def _join_existing(self, extend: bool) -> set[BatchKey]:
        """Return the keys already published; refuse a pool that may not or cannot be extended."""
        with write_errors(self.path):
            if not (self.path / MANIFEST_FILE).exists():
                return set()
        if not extend:
            raise PoolConflictError(
                "a pool is already here", where=self.path, hint="choose another path or extend it"
            )
        with PoolReader(self.path) as pool:
            found = describe(pool.header, pool.codec, pool.images.digest())
            wanted = describe(self.header, self.codec, self.images.digest())
            require_same_plan(found, wanted, where=str(self.path / MANIFEST_FILE))
            return set(pool.keys)

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
        if batch.key in self._keys:
            raise DuplicateBatchError(
                "batch was already written",
                where=f"{self.path}, {batch.key}",
                hint="skip keys for which `key in writer` is true",
            )
        self._check_ranges(batch.views)
        self._pending.append(batch)
        self._keys.add(batch.key)
        self._pending_bytes += batch.nbytes
        self._pending_rows += batch.views.rows
        if (
            self._pending_bytes >= self._shard_bytes
            or self._pending_rows >= SHARD_VIEW_ROWS
            or time.monotonic() - self._last_seal >= self._seal_seconds
        ):
            self.flush()

    def extend(self, batches: Iterable[LabelBatch]) -> None:
        """Append batches, passing over those that are already safe."""
        for batch in batches:
            if batch.key not in self:
                self.append(batch)

    def _check_ranges(self, views: ViewBatch) -> None:
        """Refuse views that point outside the image table, the image or the output."""
        if views.rows > self.header.batch_size:
            raise InvalidBatchError(
                "batch is too large",
                where=views.key,
                expected=f"at most {self.header.batch_size} rows",
                got=views.rows,
            )
        if int(views.images.max()) >= len(self.images):
            raise InvalidBatchError(
                "field 'images' is wrong",
                where=views.key,
                expected=f"indices below {len(self.images)}",
                got=int(views.images.max()),
            )
        ends = views.crops[:, :2].astype(np.int64) + views.crops[:, 2:]
        sizes = np.stack([self.images.heights[views.images], self.images.widths[views.images]], axis=1)
        outside = (ends > sizes).any(axis=1)
        if outside.any():
            slot = int(np.argmax(outside))
            raise InvalidBatchError(
                f"crop reaches outside image {int(views.images[slot])} (slot {slot})",
                where=views.key,
                expected=f"within {sizes[slot].tolist()} (height, width)",
                got=views.crops[slot].tolist(),
            )
        limits = (self.header.augmentation.output_height, self.header.augmentation.output_width)
        corners: list[Sequence[int]] = []
        if views.mix is not None and views.mix.box is not None:
            corners.append(views.mix.box[2:])
        if views.cutout is not None:
            corners.append(views.cutout.boxes[:, 2:].max(axis=0).tolist())
        for bottom, right in corners:
            if bottom > limits[0] or right > limits[1]:
                raise InvalidBatchError(
                    "a box reaches outside the view",
                    where=views.key,
                    expected=f"at most {limits}",
                    got=(bottom, right),
                )

    def flush(self) -> None:
        """Seal what has gathered, so that a crash cannot lose it."""
        if self._pending:
            name = seal_shard(self._staging.directory, self._pending, self.codec, self.header.classes)
            log.debug("sealed %s with %d batches", name, len(self._pending))
            self._pending = []
            self._pending_bytes = self._pending_rows = 0
        self._last_seal = time.monotonic()

    def commit(self, *, lineage: tuple[LineageStep, ...] | None = None) -> Manifest:
        """Publish everything sealed so far, by this and other writers, and return the manifest.

        lineage: replaces the header's lineage, e.g. when a pool was extended.
        """
        self.flush()
        return commit_pool(
            self._staging,
            self.header,
            self.codec,
            self.images,
            shard_bytes=self._shard_bytes,
            lineage=lineage,
        )

    def __enter__(self) -> PoolWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Seal what has gathered. Leaving without `commit` publishes nothing, with or without an error."""
        if not isinstance(error, PoolWriteError):
            self.flush()


def missing_keys(writer: PoolWriter, wanted: Iterable[BatchKey]) -> Iterator[BatchKey]:
    """Return the wanted keys that are not safe yet, in the order given."""
    return (key for key in wanted if key not in writer)
