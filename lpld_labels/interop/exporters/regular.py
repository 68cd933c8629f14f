"""Which keys old trainers can work with.

They count batches through all epochs and divide by the length of epoch 0 to find a file again. So every
epoch but the last must be as long as the first, and only the last batch of an epoch may be short.
"""

from __future__ import annotations

from lpld_labels.format.records import BatchKey
from lpld_labels.pool.reader import PoolReader


def is_regular(pool: PoolReader) -> bool:
    """Say whether a pool's keys and rows are those of a whole labelling run."""
    lengths = _epoch_lengths(pool)
    if list(lengths) != list(range(len(lengths))) or not lengths:
        return False
    dense = [key for epoch, length in lengths.items() for key in _keys(epoch, length)]
    even = all(length == lengths[0] for length in list(lengths.values())[:-1])
    return dense == list(pool.keys) and even and lengths[max(lengths)] <= lengths[0] and _full(pool, lengths)


def complete_keys(pool: PoolReader) -> list[BatchKey]:
    """Return the keys of batches that are not short."""
    size = pool.header.batch_size
    return [key for key, rows in zip(pool.keys, pool.index.rows.tolist(), strict=True) if rows == size]


def _epoch_lengths(pool: PoolReader) -> dict[int, int]:
    lengths: dict[int, int] = {}
    for key in pool.keys:
        lengths[key.epoch] = lengths.get(key.epoch, 0) + 1
    return lengths


def _keys(epoch: int, length: int) -> list[BatchKey]:
    return [BatchKey(epoch, batch) for batch in range(length)]


def _full(pool: PoolReader, lengths: dict[int, int]) -> bool:
    size = pool.header.batch_size
    return all(
        rows == size or key.batch == lengths[key.epoch] - 1
        for key, rows in zip(pool.keys, pool.index.rows.tolist(), strict=True)
    )
