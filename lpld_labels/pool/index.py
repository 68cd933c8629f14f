"""The batch index in memory: which batches there are and where each one lies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.errors import BatchNotFoundError, ManifestError, PoolCorruptError
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.records import BatchKey
from lpld_labels.pool.shard_reader import ParquetRows


def count_runs(values: npt.NDArray[np.int32]) -> int:
    """Return how many different values there are in ascending order; `np.unique` would sort them again."""
    return int(np.count_nonzero(np.diff(values))) + 1 if len(values) else 0


class BatchIndex:
    """Columns of the batch index, in key order.

    epochs, batches, rows: int32 [N]. shards: how many shards the pool has.
    """

    def __init__(self, table: pa.Table, shards: int) -> None:
        self.epochs: npt.NDArray[np.int32] = table["epoch"].to_numpy()
        self.batches: npt.NDArray[np.int32] = table["batch"].to_numpy()
        self.rows: npt.NDArray[np.int32] = table["rows"].to_numpy()
        self.shards = shards
        self._shard: npt.NDArray[np.int32] = table["shard"].to_numpy()
        self._view_row: npt.NDArray[np.int64] = table["view_row"].to_numpy()
        self._position: npt.NDArray[np.int32] = table["position"].to_numpy()
        self._digests = table["digest"]
        self._order = self.epochs.astype(np.int64) << 32 | self.batches

    @staticmethod
    def load(file: ParquetRows, manifest: Manifest) -> BatchIndex:
        """Read the index and check it against what the manifest says."""
        index = BatchIndex(file.read_all(), len(manifest.files_of("views")))
        index._check(manifest, file.where)
        return index

    def _check(self, manifest: Manifest, where: str) -> None:
        if (np.diff(self._order) <= 0).any():
            raise PoolCorruptError("batch index is not in strict key order", where=where)
        counts = manifest.counts
        facts = {
            "batches": len(self),
            "rows": int(self.rows.sum()),
            "epochs": count_runs(self.epochs),
        }
        for field, got in facts.items():
            if getattr(counts, field) != got:
                raise ManifestError(
                    f"field 'counts.{field}' disagrees with the batch index",
                    where=where,
                    expected=getattr(counts, field),
                    got=got,
                    hint="restore pool.json and the index from the same copy",
                )
        if len(self) and (self._shard.min() < 0 or self._shard.max() >= self.shards):
            raise PoolCorruptError("batch index names a shard that does not exist", where=where)
        held = np.bincount(self._shard, weights=self.rows, minlength=self.shards).astype(np.int64)
        for entry, rows in zip(manifest.files_of("views"), held.tolist(), strict=True):
            if entry.rows != rows:
                raise ManifestError(
                    f"field 'files' gives a wrong row count for {entry.path}",
                    where=where,
                    expected=rows,
                    got=entry.rows,
                )

    def __len__(self) -> int:
        return len(self._order)

    @cached_property
    def keys(self) -> Sequence[BatchKey]:
        """All keys in order."""
        return [BatchKey(e, b) for e, b in zip(self.epochs.tolist(), self.batches.tolist(), strict=True)]

    def key(self, number: int) -> BatchKey:
        """Return the key of the batch at a place in the index."""
        return BatchKey(int(self.epochs[number]), int(self.batches[number]))

    def find(self, key: BatchKey) -> int | None:
        """Return the place of a key in the index, or None."""
        wanted = key.epoch << 32 | key.batch
        number = int(np.searchsorted(self._order, wanted))
        return number if number < len(self) and self._order[number] == wanted else None

    def locate(self, number: int) -> tuple[int, int, int, int]:
        """Return (shard, first view row, position in the shard, rows) of a batch."""
        return (
            int(self._shard[number]),
            int(self._view_row[number]),
            int(self._position[number]),
            int(self.rows[number]),
        )

    def in_file_order(self, keys: Iterable[BatchKey]) -> list[BatchKey]:
        """Return keys of the pool in the order in which reads go front to back."""
        numbers = np.searchsorted(
            self._order, np.array([epoch << 32 | batch for epoch, batch in keys], np.int64)
        )
        order = np.lexsort((self._view_row[numbers], self._shard[numbers]))
        return [self.key(number) for number in numbers[order].tolist()]

    def rows_of(self, key: BatchKey) -> int:
        """Return the number of rows of a batch that is in the pool."""
        number = self.find(key)
        if number is None:
            raise BatchNotFoundError(f"no {key} in this pool")
        return int(self.rows[number])

    def keys_of_shard(self, shard: int) -> list[BatchKey]:
        """Return the batches of one shard in file order."""
        numbers = np.flatnonzero(self._shard == shard)
        return [self.key(int(n)) for n in numbers[np.argsort(self._position[numbers])]]

    def digests_of(self, keys: Iterable[BatchKey]) -> list[bytes]:
        """Return the digests of batches that are in the pool, in the order given."""
        return [self.digest(number) for number in map(self.find, keys) if number is not None]

    def digest(self, number: int) -> bytes:
        """Return the 16-byte digest of a batch."""
        digest: bytes = self._digests[number].as_py()
        return digest

    def digests(self) -> list[bytes]:
        """Return all batch digests in key order."""
        digests: list[bytes] = self._digests.to_pylist()
        return digests
