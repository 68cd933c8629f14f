"""Merging small sealed shards before a commit.

Slow labelling seals a shard every few minutes and several processes each have their own, so a pool
would end in thousands of little files. Payloads are copied as they are; nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from lpld_labels.codecs import Codec
from lpld_labels.format.schema import SHARD_BATCHES, VIEW_SCHEMA
from lpld_labels.format.views import DecodedViews
from lpld_labels.io.random_access import open_file
from lpld_labels.io.verified_parquet import VerifiedParquet
from lpld_labels.pool.block_cache import BlockCache
from lpld_labels.pool.index import BatchIndex
from lpld_labels.pool.label_pages import LabelPages, payload_blocks
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.staged_shard import LABELS, VIEWS, SealedShard
from lpld_labels.pool.staging import StagingArea


def merge_small_shards(
    staging: StagingArea, shards: Sequence[SealedShard], codec: Codec, classes: int, *, limit: int
) -> list[SealedShard]:
    """Return the shards with small neighbours (in key order) merged up to `limit` label bytes."""
    result = []
    for group in _groups(sorted(shards, key=lambda shard: shard.first_key), limit):
        # A shard whose files an interrupted commit has moved already stays as it is.
        if len(group) == 1 or not all(staging.is_whole(shard) for shard in group):
            result += group
            continue
        batches = [batch for shard in group for batch in sealed_batches(staging, shard, codec, classes)]
        names = [shard.name for shard in group]
        result.append(staging.seal(batches, codec, classes, replaces=names))
        for name in names:
            staging.discard(name)
    return result


def _groups(shards: Sequence[SealedShard], limit: int) -> Iterator[list[SealedShard]]:
    """Gather neighbours while their label bytes together stay within the limit, and their batches too."""
    group: list[SealedShard] = []
    size = batches = 0
    for shard in shards:
        size += shard.labels.bytes
        batches += shard.batches.num_rows
        if group and (size > limit or batches > SHARD_BATCHES):
            yield group
            group, size, batches = [], shard.labels.bytes, shard.batches.num_rows
        group.append(shard)
    if group:
        yield group


def sealed_batches(
    staging: StagingArea, shard: SealedShard, codec: Codec, classes: int
) -> Iterator[EncodedBatch]:
    """Yield the batches of a sealed shard as they are stored."""
    views_path, labels_path = str(staging.file(shard, VIEWS)), str(staging.file(shard, LABELS))
    views = VerifiedParquet(open_file(views_path), shard.views.entry(VIEWS, "views"), VIEW_SCHEMA)
    # Batches come in file order, so keeping one block of each kind is enough.
    blocks = BlockCache[DecodedViews](0, lambda block: 1)
    pages = LabelPages(open_file(labels_path), codec, classes, blocks=payload_blocks(0))
    index = BatchIndex(shard.batches, 1)
    for number, key in enumerate(index.keys):
        first, rows = int(index.first_rows[number]), int(index.rows[number])
        group, start = views.group_of(first, rows)
        block = blocks.get(group, partial(_decoded, views, group))
        yield EncodedBatch(
            views=block.batch(key, slice(start, start + rows)),
            payload=pages.payload(index.group(number), int(index.positions[number]), first, rows),
            views_digest=index.views_digest(number),
            digest=index.digest(number),
        )


def _decoded(file: VerifiedParquet, group: int) -> DecodedViews:
    return DecodedViews(file.read(group))
