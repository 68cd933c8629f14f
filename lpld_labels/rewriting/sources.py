"""Where the batches of a new pool come from when it is made of another pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lpld_labels.codecs import Codec
from lpld_labels.format import arrow
from lpld_labels.format.manifest import LineageStep
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.format.schema import Views
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.rewriting.engine import Draft, Keys


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """Batches of a pool, and the past that a pool of just these has.

    step: what chose them; None if they were not chosen but taken.
    """

    pool: PoolReader
    keys: Sequence[BatchKey]
    step: LineageStep | None = None

    @property
    def lineage(self) -> tuple[LineageStep, ...]:
        """The steps that lead to these batches."""
        return self.pool.header.lineage if self.step is None else (*self.pool.header.lineage, self.step)

    @property
    def rows(self) -> int:
        """Rows of all the batches."""
        return sum(self.pool.index.rows_of(key) for key in self.keys)

    def digest(self) -> str:
        """Return the content digest of a pool of these batches as they are stored."""
        pool = self.pool
        if self.step is None:
            return pool.manifest.content_digest
        return pool.digest_of(pool.index.digests_of(sorted(self.keys)))

    def draft(
        self, out: Path, purpose: dict[str, Any], codec: Codec | None = None, views: Views | None = None
    ) -> Draft:
        """Return the draft of a pool of these batches, copied or encoded again by another codec.

        views: whether it keeps its views; None to do as the pool does.
        """
        pool = self.pool
        return Draft(
            out=out,
            header=pool.header,
            images=pool.images,
            codec=codec or pool.codec,
            views=views or pool.manifest.views,
            source=Copied(pool) if codec is None else Encoded(pool, codec),
            pieces=lambda: [Keys((key,)) for key in pool.index.in_file_order(self.keys)],
            batches=len(self.keys),
            keys=frozenset(self.keys),
            purpose=purpose,
        )


@dataclass(frozen=True)
class Copied:
    """Batches as they are stored."""

    pool: PoolReader

    def __call__(self, piece: Keys) -> Iterator[EncodedBatch]:
        for key in piece.keys:
            yield _detached(self.pool.read_encoded(key))


@dataclass(frozen=True)
class Encoded:
    """Batches whose labels are decoded and encoded again."""

    pool: PoolReader
    codec: Codec

    def __call__(self, piece: Keys) -> Iterator[EncodedBatch]:
        for key in piece.keys:
            batch = self.pool.read(key)
            yield EncodedBatch.make(batch, self.codec.encode(batch.labels))


def _detached(batch: EncodedBatch) -> EncodedBatch:
    """Return a batch that owns its memory.

    What a reader hands out points into row groups of up to hundreds of batches; keeping a few batches
    of each until a shard is full must not keep the groups.
    """
    payload = {name: _owned(array) for name, array in batch.payload.items()}
    return EncodedBatch(
        views=_owned_views(batch.views),
        payload=payload,
        views_digest=batch.views_digest,
        digest=batch.digest,
    )


def _owned(array: arrow.Array) -> arrow.Array:
    return arrow.take(array, np.arange(len(array)))


def _owned_views(views: ViewBatch) -> ViewBatch:
    mix, cutout, patches = views.mix, views.cutout, views.patch_order
    return replace(
        views,
        images=views.images.copy(),
        crops=views.crops.copy(),
        flips=views.flips.copy(),
        mix=None if mix is None else replace(mix, partner=mix.partner.copy()),
        cutout=None
        if cutout is None
        else replace(cutout, boxes=cutout.boxes.copy(), fill=cutout.fill.copy()),
        patch_order=None if patches is None else patches.copy(),
    )
