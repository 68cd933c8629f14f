"""Where a pool's views come from: its views files, or the numbers they were drawn from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from lpld_labels.errors import InvalidArgumentError, PoolCorruptError
from lpld_labels.format.digests import VIEWS_SHORT, views_digest
from lpld_labels.format.drawing import batches_per_epoch, draw_images, draw_views
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.format.records import BatchKey, IntArray, ViewBatch
from lpld_labels.format.views import DecodedViews
from lpld_labels.pool.block_cache import BlockCache
from lpld_labels.pool.index import BatchIndex
from lpld_labels.pool.proven_parquet import ProvenParquet
from lpld_labels.pool.view_checks import ViewChecker


class ViewSource(Protocol):
    """Views by the number of a batch in the index."""

    def views(self, number: int) -> ViewBatch:
        """Return the views of a batch."""
        ...

    def images(self, number: int) -> IntArray:
        """Return which images a batch shows: int32 [B]."""
        ...

    def clear(self) -> None:
        """Let go of files and of what was kept of them."""
        ...

    def reopen(self) -> None:
        """Forget open files, which do not survive fork."""
        ...


class StoredViews:
    """Views out of files, row group by row group, every value checked before it is used.

    open_file: opens the views file of a shard. cache_bytes: memory for decoded row groups.
    """

    def __init__(
        self,
        index: BatchIndex,
        checker: Callable[[], ViewChecker],
        open_file: Callable[[int], ProvenParquet],
        *,
        cache_bytes: int | None,
        open_files: int,
    ) -> None:
        self._index = index
        self._checker = checker
        self._open_file = open_file
        self._blocks: BlockCache[DecodedViews] = BlockCache(cache_bytes, lambda block: block.nbytes)
        self._files: BlockCache[ProvenParquet] = BlockCache(open_files, lambda file: 1)

    def views(self, number: int) -> ViewBatch:
        """Return the views of a batch. Its arrays are views into the row group, not to be written to."""
        block, part = self._block(number)
        return block.batch(self._index.key(number), part)

    def images(self, number: int) -> IntArray:
        """Return which images a batch shows."""
        block, part = self._block(number)
        return block.images[part]

    def clear(self) -> None:
        """Let go of files and decoded row groups."""
        self._files.clear()
        self._blocks.clear()

    def reopen(self) -> None:
        """Forget open files; decoded row groups stay."""
        self._files.clear()

    def _block(self, number: int) -> tuple[DecodedViews, slice]:
        shard = int(self._index.shard[number])
        file = self._files.get(shard, lambda: self._open_file(shard))
        first, rows = self._index.first_row(number), int(self._index.rows[number])
        group, start = file.group_of(first, rows)
        block = self._blocks.get((shard, group), lambda: self._read(file, shard, group))
        return block, slice(start, start + rows)

    def _read(self, file: ProvenParquet, shard: int, group: int) -> DecodedViews:
        table = file.read(group)
        numbers = self._index.in_shard(shard)
        firsts = self._index.first_rows[numbers]
        low, high = np.searchsorted(firsts, [file.starts[group], file.starts[group + 1]])
        inside = numbers[low:high]
        keys = [self._index.key(int(number)) for number in inside]
        rows = self._index.rows[inside].astype(np.int64)
        self._checker().check(table, keys, rows, where=file.where)
        block = DecodedViews(table)
        stops = np.cumsum(rows).tolist()
        for number, key, count, stop in zip(inside.tolist(), keys, rows.tolist(), stops, strict=True):
            shown = views_digest(block.batch(key, slice(stop - count, stop)))
            if shown[:VIEWS_SHORT] != self._index.views_digest(number):
                raise PoolCorruptError(
                    f"views are not those that were labelled ({key})",
                    where=file.where,
                    hint="restore this file",
                )
        return block


class DrawnViews:
    """Views made again from (seed, epoch, batch); SPEC.md says how. Each is compared with its digest."""

    def __init__(
        self, index: BatchIndex, header: PoolHeader, images: Callable[[], ImageTable], where: str
    ) -> None:
        self._index = index
        self._header = header
        self._images = images
        self._where = where

    def views(self, number: int) -> ViewBatch:
        """Draw the views of a batch."""
        key = self._index.key(number)
        images = self._images()
        if self._header.seed is None or len(self.images(number)) != int(self._index.rows[number]):
            raise self._wrong(key, "there is no batch of so many rows to draw")
        views = draw_views(
            self._header.augmentation,
            images,
            seed=self._header.seed,
            epoch=key.epoch,
            batch=key.batch,
            batch_size=self._header.batch_size,
            strength=self._index.strength(number),
        )
        if views_digest(views)[:VIEWS_SHORT] != self._index.views_digest(number):
            raise self._wrong(key, "drawn views are not those that were labelled")
        return views

    def images(self, number: int) -> IntArray:
        """Return which images a batch shows; the rest of its views is not drawn."""
        key = self._index.key(number)
        return draw_images(
            len(self._images()),
            seed=self._header.seed or 0,
            epoch=key.epoch,
            batch=key.batch,
            batch_size=self._header.batch_size,
        )

    def clear(self) -> None:
        """Nothing is kept."""

    def reopen(self) -> None:
        """Nothing is open."""

    def _wrong(self, key: BatchKey, problem: str) -> PoolCorruptError:
        return PoolCorruptError(
            f"{problem} ({key})", where=self._where, hint="restore pool.json, the index and the image table"
        )


def require_drawn(views: ViewBatch, header: PoolHeader, images: ImageTable) -> None:
    """Refuse a batch for a pool that leaves its views out, unless drawing gives exactly these views."""
    key = views.key
    problem = header.augmentation.drawing_problem() and "their augmentation cannot be drawn"
    if header.seed is None:
        problem = "the pool does not know its seed"
    if problem is None and key.batch < batches_per_epoch(len(images), header.batch_size):
        drawn = draw_views(
            header.augmentation,
            images,
            seed=header.seed or 0,
            epoch=key.epoch,
            batch=key.batch,
            batch_size=header.batch_size,
            strength=None if views.mix is None else views.mix.strength,
        )
        if views_digest(drawn) == views_digest(views):
            return
    raise InvalidArgumentError(
        f"views of {key} cannot be left out: {problem or 'drawing them gives others'}",
        expected="views that were drawn from the pool's seed, as `build` does",
        hint="keep them (--views stored): imported pools, and those built for other programs, need them",
    )
