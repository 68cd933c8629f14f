"""The in-memory batch index: the batches of a pool, and the place and digest of each batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.errors import BatchNotFoundError, ManifestError, PoolCorruptError
from lpld_labels.format import arrow
from lpld_labels.format.manifest import FileEntry, Manifest
from lpld_labels.format.records import BatchKey
from lpld_labels.format.schema import MANIFEST_FILE

_FIRST_BYTE = 4  # Data of a Parquet file begin after its magic number.
_INT32 = 2**31 - 1
_RESTORE = "restore pool.json and the index from the same copy"


def count_runs(values: npt.NDArray[np.int32]) -> int:
    """Return the number of distinct values of an ascending array."""
    return int(np.count_nonzero(np.diff(values))) + 1 if len(values) else 0


def _corrupt(problem: str, where: str, **facts: Any) -> PoolCorruptError:
    return PoolCorruptError(problem, where=where, hint=_RESTORE, **facts)


class Group(NamedTuple):
    """A row group. offset, bytes: place and size of its pages. first_*: first batch and row in the shard."""

    offset: int
    bytes: int
    first_position: int
    batches: int
    first_row: int
    rows: int


class BatchIndex:
    """Columns of the batch index, in key order, validated against each other and the manifest.

    epochs, batches, rows, shard: int32 [N]. positions: int32 [N], number of earlier batches in the shard.
    first_rows: int64 [N], number of views in those batches. label_bytes: int32 [N], label bytes of a batch.
    """

    def __init__(self, table: pa.Table, manifest: Manifest, where: str) -> None:
        self.epochs: npt.NDArray[np.int32] = table["epoch"].to_numpy()
        self.batches: npt.NDArray[np.int32] = table["batch"].to_numpy()
        self.rows: npt.NDArray[np.int32] = table["rows"].to_numpy()
        self.shard: npt.NDArray[np.int32] = table["shard"].to_numpy()
        self.first_rows: npt.NDArray[np.int64] = table["first_row"].to_numpy()
        self.positions: npt.NDArray[np.int32] = table["position"].to_numpy()
        self.label_bytes: npt.NDArray[np.int32] = table["label_bytes"].to_numpy()
        self._group_offset: npt.NDArray[np.int64] = table["group_offset"].to_numpy()
        self._group_bytes: npt.NDArray[np.int32] = table["group_bytes"].to_numpy()
        self._strength = table["mix_strength"]
        self._views_digests = table["views_digest"]
        self._digests = table["digest"]
        self._order = self.epochs.astype(np.int64) << 32 | self.batches
        self.shards = len(manifest.files_of("labels"))
        self._check_values(manifest, where)
        self._check_counts(manifest, where)
        self._check_places(manifest, where)

    def _check_values(self, manifest: Manifest, where: str) -> None:
        """Refuse values out of range, before anything is computed from them."""
        size = manifest.header.batch_size
        limits: dict[str, tuple[npt.NDArray[Any], int, int]] = {
            "epoch": (self.epochs, 0, _INT32),
            "batch": (self.batches, 0, _INT32),
            "rows": (self.rows, 1, size),
            "shard": (self.shard, 0, self.shards - 1),
            "position": (self.positions, 0, len(self) - 1),
            "group_offset": (self._group_offset, _FIRST_BYTE, 2**62),
            "group_bytes": (self._group_bytes, 1, _INT32),
            "label_bytes": (self.label_bytes, 0, _INT32),
        }
        for column, (values, low, high) in limits.items():
            wrong = np.flatnonzero((values < low) | (values > high))
            if len(wrong):
                problem = f"column '{column}' of the batch index is out of range at row {wrong[0]}"
                raise _corrupt(problem, where, expected=f"{low} to {high}", got=int(values[wrong[0]]))
        if (np.diff(self._order) <= 0).any():
            raise _corrupt("batch index is not in strict key order", where)
        drawn_and_mixed = manifest.views == "drawn" and manifest.header.augmentation.mix != "none"
        strength = self._strength.to_numpy()
        good = (strength >= 0) & (strength <= 1) & ~np.signbit(strength)
        nulls = 0 if drawn_and_mixed else len(self)
        if self._strength.null_count != nulls or (drawn_and_mixed and not good.all()):
            expected = "0 to 1" if drawn_and_mixed else "null, because views are stored or not mixed"
            raise _corrupt("column 'mix_strength' of the batch index is wrong", where, expected=expected)

    def _check_counts(self, manifest: Manifest, where: str) -> None:
        counts = manifest.counts
        facts = {
            "batches": len(self),
            "incomplete_batches": int((self.rows < manifest.header.batch_size).sum()),
            "rows": int(self.rows.sum(dtype=np.int64)),
            "epochs": count_runs(self.epochs),
        }
        for field, got in facts.items():
            if getattr(counts, field) != got:
                problem = f"field 'counts.{field}' disagrees with the batch index"
                expected = getattr(counts, field)
                raise ManifestError(problem, where=where, expected=expected, got=got, hint=_RESTORE)
        self._check_rows(manifest.files_of("views"), self.rows, where)

    def check_label_rows(self, manifest: Manifest, *, by_view: bool) -> None:
        rows = self.rows if by_view else np.ones(len(self), np.int32)
        self._check_rows(manifest.files_of("labels"), rows, MANIFEST_FILE)

    def _check_rows(self, files: Sequence[FileEntry], rows: npt.NDArray[np.int32], where: str) -> None:
        sums = np.bincount(self.shard, weights=rows, minlength=self.shards).astype(np.int64)
        for entry, expected in zip(files, sums.tolist(), strict=False):
            if entry.rows != expected:
                problem = f"field 'files' gives a wrong row count for {entry.path}"
                raise ManifestError(problem, where=where, expected=expected, got=entry.rows)

    def _check_places(self, manifest: Manifest, where: str) -> None:
        """Refuse positions that are not consecutive, and row groups that overlap or exceed their file."""
        order = self._by_shard
        shards = self.shard[order]
        firsts = np.searchsorted(shards, shards)
        rows = self.rows[order].astype(np.int64)
        before = np.cumsum(rows) - rows
        expected: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {
            "position": (self.positions[order], np.arange(len(order)) - firsts),
            "first_row": (self.first_rows[order], before - before[firsts]),
        }
        for column, (got, wanted) in expected.items():
            if not np.array_equal(got, wanted):
                problem = f"column '{column}' of the batch index does not count up within a shard"
                raise _corrupt(problem, where)
        if not len(order):
            return
        offsets, sizes = self._group_offset[order], self._group_bytes[order].astype(np.int64)
        bounds = self._groups[1]
        starts = bounds[:-1]
        ends = offsets[starts] + sizes[starts]
        alike = np.array_equal(sizes, np.repeat(sizes[starts], np.diff(bounds)))
        later = (shards[starts[1:]] != shards[starts[:-1]]) | (offsets[starts[1:]] >= ends[:-1])
        entries = manifest.files_of("labels")
        data = np.array([entry.bytes - (entry.footer_bytes or 0) for entry in entries], np.int64)
        if not (alike and later.all() and (ends <= data[shards[starts]]).all()):
            problem = "row groups overlap or exceed the file (columns 'group_offset' and 'group_bytes')"
            raise _corrupt(problem, where)
        shares = np.add.reduceat(self.label_bytes[order].astype(np.int64), starts)
        if not np.array_equal(shares, sizes[starts]):
            raise _corrupt("column 'label_bytes' of the batch index does not add up to its row groups", where)

    @cached_property
    def _by_shard(self) -> npt.NDArray[np.int64]:
        """Numbers of all batches, sorted by shard and by position within the shard."""
        return np.argsort(self.shard, kind="stable")

    @cached_property
    def _groups(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Row group of each batch, [N], and bounds of the row groups in `_by_shard`, [groups + 1]."""
        order = self._by_shard
        shards, offsets = self.shard[order], self._group_offset[order]
        changes = np.ones(len(order), bool)
        changes[1:] = (shards[1:] != shards[:-1]) | (offsets[1:] != offsets[:-1])
        group_of = np.empty(len(order), np.int64)
        group_of[order] = np.cumsum(changes) - 1
        return group_of, np.append(np.flatnonzero(changes), len(order))

    def __len__(self) -> int:
        return len(self._order)

    @cached_property
    def keys(self) -> Sequence[BatchKey]:
        return [BatchKey(e, b) for e, b in zip(self.epochs.tolist(), self.batches.tolist(), strict=True)]

    def keys_at(self, numbers: npt.NDArray[np.integer[Any]]) -> list[BatchKey]:
        return [self.keys[number] for number in numbers.tolist()]

    def key(self, number: int) -> BatchKey:
        return BatchKey(int(self.epochs[number]), int(self.batches[number]))

    def find(self, key: BatchKey) -> int | None:
        wanted = key.epoch << 32 | key.batch
        number = int(np.searchsorted(self._order, wanted))
        return number if number < len(self._order) and self._order[number] == wanted else None

    def numbers(self, keys: Iterable[BatchKey]) -> npt.NDArray[np.int64]:
        """Return the index rows of the batches `keys`, in the same order: int64 [n]. All must exist."""
        wanted = np.array([epoch << 32 | batch for epoch, batch in keys], np.int64)
        numbers = np.searchsorted(self._order, wanted)
        there = numbers < len(self._order)
        there[there] = self._order[numbers[there]] == wanted[there]
        if not there.all():
            missing = int(wanted[np.argmin(there)])
            raise BatchNotFoundError(f"no {BatchKey(missing >> 32, missing & 0xFFFFFFFF)} in this pool")
        return numbers

    def group(self, number: int) -> Group:
        group_of, starts = self._groups
        group = int(group_of[number])
        begin, end = int(starts[group]), int(starts[group + 1])
        first, last = int(self._by_shard[begin]), int(self._by_shard[end - 1])
        return Group(
            offset=int(self._group_offset[first]),
            bytes=int(self._group_bytes[first]),
            first_position=int(self.positions[first]),
            batches=end - begin,
            first_row=int(self.first_rows[first]),
            rows=int(self.first_rows[last]) + int(self.rows[last]) - int(self.first_rows[first]),
        )

    def strength(self, number: int) -> float | None:
        """Return the mix strength of a batch with drawn views; None if views are stored or not mixed."""
        value: float | None = self._strength[number].as_py()
        return value

    def in_file_order(self, keys: Iterable[BatchKey]) -> list[BatchKey]:
        numbers = self.numbers(keys)
        order = np.lexsort((self.first_rows[numbers], self.shard[numbers]))
        return self.keys_at(numbers[order])

    def in_shard(self, shard: int) -> npt.NDArray[np.int64]:
        """Return the numbers (index rows) of one shard's batches in file order."""
        low, high = np.searchsorted(self.shard[self._by_shard], [shard, shard + 1])
        return self._by_shard[low:high]

    def in_rows(self, shard: int, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return the numbers of one shard's batches that begin in rows [first, last), in file order."""
        numbers = self.in_shard(shard)
        low, high = np.searchsorted(self.first_rows[numbers], [first, last])
        return numbers[low:high]

    def groups_of(self, shard: int) -> list[Group]:
        numbers = self.in_shard(shard)
        firsts = numbers[np.unique(self._groups[0][numbers], return_index=True)[1]]
        return [self.group(number) for number in firsts.tolist()]

    def views_digest(self, number: int) -> bytes:
        """Return the first 8 bytes of a batch's views digest."""
        return bytes(self._views_digests[number].as_py())

    def digest(self, number: int) -> bytes:
        return bytes(self._digests[number].as_py())

    def digests(self, numbers: npt.NDArray[np.int64] | None = None) -> list[bytes]:
        """Return the digests of the batches `numbers`, in this order. None: all batches, in key order."""
        digests = self._digests.combine_chunks()
        return arrow.binaries(digests if numbers is None else arrow.take(digests, numbers))
