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
from lpld_labels.format.records import BatchKey
from lpld_labels.format.schema import Views
from lpld_labels.format.views import owned
from lpld_labels.pool.packing import carried
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.transforms.engine import Draft, Keys
from lpld_labels.transforms.prune import PrunePlan


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
        return int(self.pool.index.rows_of(self.keys).sum(dtype=np.int64))

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
            packed=carried(pool),
        )


@dataclass(frozen=True)
class Copied:
    """Batches as they are stored."""

    pool: PoolReader

    def expect(self, pieces: Sequence[Keys]) -> None:
        """Fetch them ahead, if they are elsewhere."""
        expect_pieces(self.pool, pieces)

    def __call__(self, piece: Keys) -> Iterator[EncodedBatch]:
        for key in piece.keys:
            yield _detached(self.pool.read_encoded(key))


@dataclass(frozen=True)
class Encoded:
    """Batches whose labels are decoded and encoded again."""

    pool: PoolReader
    codec: Codec

    def expect(self, pieces: Sequence[Keys]) -> None:
        """Fetch them ahead, if they are elsewhere."""
        expect_pieces(self.pool, pieces)

    def __call__(self, piece: Keys) -> Iterator[EncodedBatch]:
        for key in piece.keys:
            batch = self.pool.read(key)
            yield EncodedBatch.make(batch, self.codec.encode(batch.labels), frame=self.pool.frame)


def pruned(plan: PrunePlan) -> Selection:
    """Return the batches that a plan keeps."""
    return Selection(pool=plan.pool, keys=plan.keys, step=plan.step)


def expect_pieces(pool: PoolReader, pieces: Sequence[Keys]) -> None:
    """Tell a pool which batches will be asked of it."""
    pool.prefetch(pool.index.numbers([key for piece in pieces for key in piece.keys]).tolist())


def _detached(batch: EncodedBatch) -> EncodedBatch:
    """Return a batch that owns its memory.

    What a reader hands out points into row groups of up to hundreds of batches; keeping a few batches
    of each until a shard is full must not keep the groups.
    """
    payload = {name: _owned(array) for name, array in batch.payload.items()}
    return replace(batch, views=owned(batch.views), payload=payload)


def _owned(array: arrow.Array) -> arrow.Array:
    return arrow.take(array, np.arange(len(array)))
