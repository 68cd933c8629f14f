"""Merging small sealed shards before a commit.

Slow labelling seals a shard every few minutes and several processes each have their own, so a pool
would end in thousands of little files. Payloads are copied as they are; nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyarrow import fs

from lpld_labels.codecs import Codec
from lpld_labels.pool.shard import LABELS, VIEWS, EncodedBatch, SealedShard
from lpld_labels.pool.shard_reader import ShardCaches, ShardReader
from lpld_labels.pool.staging import StagingArea


def merge_small_shards(
    staging: StagingArea, shards: Sequence[SealedShard], codec: Codec, classes: int, *, limit: int
) -> list[SealedShard]:
    """Return the shards with small neighbours (in key order) merged up to `limit` label bytes."""
    result = []
    for group in _groups(sorted(shards, key=lambda shard: shard.keys[0]), limit):
        # A shard whose files an interrupted commit has moved already stays as it is.
        if len(group) == 1 or not all(staging.is_whole(shard) for shard in group):
            result += group
            continue
        batches = [batch for shard in group for batch in _batches(staging, shard, codec, classes)]
        names = [shard.name for shard in group]
        result.append(staging.seal(batches, codec, classes, replaces=names))
        for name in names:
            staging.discard(name)
    return result


def _groups(shards: Sequence[SealedShard], limit: int) -> Iterator[list[SealedShard]]:
    """Gather neighbours while their label bytes together stay within the limit."""
    group: list[SealedShard] = []
    size = 0
    for shard in shards:
        if group and size + shard.labels_bytes > limit:
            yield group
            group, size = [], 0
        group.append(shard)
        size += shard.labels_bytes
    if group:
        yield group


def _batches(staging: StagingArea, shard: SealedShard, codec: Codec, classes: int) -> Iterator[EncodedBatch]:
    directory = staging.directory / shard.name
    # Batches come in file order, so keeping one block of each kind is enough.
    reader = ShardReader(
        fs.LocalFileSystem(),
        str(directory / VIEWS),
        str(directory / LABELS),
        codec=codec,
        classes=classes,
        caches=ShardCaches(view_bytes=0, label_bytes=0),
    )
    for row, key in zip(shard.batches.to_pylist(), shard.keys, strict=True):
        block, part = reader.view_slice(row["view_row"], row["rows"])
        payload = reader.payload(row["view_row"], row["position"], row["rows"])
        yield EncodedBatch(views=block.batch(key, part), payload=payload, digest=row["digest"])
