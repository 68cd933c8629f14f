"""Batches that two writers have sealed: kept once if they are the same, refused if they differ."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from lpld_labels.codecs import Codec
from lpld_labels.errors import DuplicateBatchError
from lpld_labels.format import arrow
from lpld_labels.format.records import BatchKey
from lpld_labels.pool.merge import sealed_batches
from lpld_labels.pool.staged_shard import SealedShard
from lpld_labels.pool.staging import StagingArea

log = logging.getLogger(__name__)


def without_duplicates(
    staging: StagingArea, shards: Sequence[SealedShard], published: pa.Table, codec: Codec, classes: int
) -> list[SealedShard]:
    """Return the shards without batches that the pool or an earlier shard holds just so.

    A worker that was given up for lost may have sealed its work after all, when another had done it again.
    Batches that differ are refused: of two labels for one view, one is wrong.
    """
    repeated = _repeated([published, *(shard.batches for shard in shards)])
    if not repeated:
        return list(shards)
    owner = {key: ("the published pool", digest) for key, digest in _digests(published, repeated).items()}
    result = []
    # What an interrupted commit has moved stays.
    for shard in sorted(shards, key=lambda shard: (staging.is_whole(shard), shard.name)):
        digests = _digests(shard.batches, repeated)
        twice = {key for key in digests if key in owner}
        for key in sorted(twice):
            if owner[key][1] != digests[key]:
                raise DuplicateBatchError(
                    f"two writers wrote {key}, and not the same: {owner[key][0]} and staged shard "
                    f"{shard.name}",
                    where=staging.pool,
                    hint=f"delete staging/{shard.name} and run again to redo the rest of its batches",
                )
        owner |= {key: (f"staged shard {shard.name}", digest) for key, digest in digests.items()}
        if not twice:
            result.append(shard)
            continue
        log.info("%s: %d batches of shard %s were written twice", staging.pool, len(twice), shard.name)
        sealed = sealed_batches(staging, shard, codec, classes)
        rest = [batch for batch in sealed if batch.views.key not in twice]
        if rest:
            result.append(staging.seal(rest, codec, classes, replaces=[shard.name]))
        staging.discard(shard.name)
    return result


def _repeated(indexes: Sequence[pa.Table]) -> set[BatchKey]:
    """Return the keys that occur more than once in some batch indexes."""
    keys = np.concatenate(
        [index["epoch"].to_numpy().astype(np.int64) << 32 | index["batch"].to_numpy() for index in indexes]
    )
    keys.sort()
    again = keys[1:][keys[1:] == keys[:-1]]
    return {BatchKey(key >> 32, key & 0xFFFFFFFF) for key in again.tolist()}


def _digests(index: pa.Table, keys: set[BatchKey]) -> dict[BatchKey, bytes]:
    """Return the digests of those batches of an index that have one of these keys."""
    epochs, batches = arrow.integers(index["epoch"]), arrow.integers(index["batch"])
    digests = zip(epochs, batches, arrow.binaries(index["digest"]), strict=True)
    return {BatchKey(epoch, batch): digest for epoch, batch, digest in digests if (epoch, batch) in keys}
