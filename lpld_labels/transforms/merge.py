"""Making one pool of several: batches that were labelled apart, copied together as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lpld_labels.errors import DuplicateBatchError, InvalidArgumentError, PoolConflictError
from lpld_labels.exec.job import Progress
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.format.records import BatchKey
from lpld_labels.pool.packing import carried
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.staging_plan import deciding, describe, differences
from lpld_labels.transforms.destinations import writes_pools
from lpld_labels.transforms.engine import (
    Draft,
    Keys,
    published,
    require_possible,
    same_lineage,
    stage,
)
from lpld_labels.transforms.outputs import sole_writer
from lpld_labels.transforms.sources import Copied, expect_pieces


@writes_pools
def merge_pools(
    pools: Sequence[PoolReader],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write a pool of all batches of some pools to `out`; return its manifest.

    The pools are of the same images, teachers, settings and codec, and no two hold the same batch.
    overwrite: replace another pool that is there. progress: called with (done, total) batches.
    """
    if len(pools) < 2:
        raise InvalidArgumentError("nothing to merge", expected="two pools or more", got=len(pools))
    require_possible(out, *pools, overwrite=overwrite)
    for other in pools[1:]:
        _require_alike(pools[0], other)
    owners = _owners(pools)
    lineage = (_step(pools),)
    batch_digests = [owners[key].index.digests_of([key])[0] for key in sorted(owners)]
    digest = pools[0].digest_of(batch_digests)

    def is_ours(manifest: Manifest) -> bool:
        return manifest.content_digest == digest and same_lineage(manifest.header.lineage, lineage)

    draft = Draft(
        out=Path(out).absolute(),
        header=pools[0].header,
        images=pools[0].images,
        codec=pools[0].codec,
        views=pools[0].manifest.views,
        source=_Merged(tuple(pools)),
        pieces=lambda: [
            _PoolKeys((key,), number)
            for number, pool in enumerate(pools)
            for key in pool.index.in_file_order(pool.keys)
        ],
        batches=len(owners),
        keys=frozenset(owners),
        # One that carries the images is enough: they are the same images.
        packed=next((found for found in map(carried, pools) if found is not None), None),
        purpose=deciding("merge", pools=[pool.manifest.content_digest for pool in pools]),
    )
    with sole_writer(out):
        found = published(out, is_ours, purpose=draft.purpose, overwrite=overwrite)
        return found or stage(draft, progress=progress).commit(lineage=lineage)


@dataclass(frozen=True)
class _PoolKeys(Keys):
    """A piece of one of the pools."""

    pool: int


@dataclass(frozen=True)
class _Merged:
    pools: tuple[PoolReader, ...]

    def expect(self, pieces: Sequence[_PoolKeys]) -> None:
        """Fetch them ahead, those of each pool by themselves."""
        for number, pool in enumerate(self.pools):
            expect_pieces(pool, [piece for piece in pieces if piece.pool == number])

    def __call__(self, piece: _PoolKeys) -> Iterator[EncodedBatch]:
        return Copied(self.pools[piece.pool])(piece)


def _require_alike(first: PoolReader, other: PoolReader) -> None:
    """Name the first thing in which two pools differ that one pool cannot have both ways."""
    plans = (
        describe(pool.header, pool.codec, pool.images.digest(), pool.manifest.views)
        for pool in (first, other)
    )
    for field, expected, got in differences(*plans):
        raise PoolConflictError(
            f"pools cannot be merged: field '{field}' differs",
            where=other.location,
            expected=repr(expected),
            got=repr(got),
            hint="merge pools of the same images, teachers, settings and codec; encode them afterwards",
        )


def _owners(pools: Sequence[PoolReader]) -> dict[BatchKey, PoolReader]:
    owners: dict[BatchKey, PoolReader] = {}
    for pool in pools:
        for key in pool.keys:
            if key in owners:
                raise DuplicateBatchError(
                    f"two pools hold {key}: {owners[key].location} and {pool.location}",
                    hint="merge pools that have no batch in common",
                )
            owners[key] = pool
    return owners


def _step(pools: Sequence[PoolReader]) -> LineageStep:
    """Return what lineage says: the past of every pool, for only one could come before this step."""
    return LineageStep(
        operation="merge",
        parent_digest=pools[0].manifest.content_digest,
        parameters={
            "pools": [
                {
                    "content_digest": pool.manifest.content_digest,
                    "batches": len(pool),
                    "lineage": [asdict(step) for step in pool.header.lineage],
                }
                for pool in pools
            ]
        },
    )
