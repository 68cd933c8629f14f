"""The views of a pool: read from views files and checked per row group, or drawn from the pool's seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.errors import InvalidArgumentError, InvalidBatchError, PoolCorruptError
from lpld_labels.format import arrow
from lpld_labels.format.digests import VIEWS_SHORT, views_digest
from lpld_labels.format.drawing import batches_per_epoch, draw_images, draw_views
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation, PoolHeader
from lpld_labels.format.records import BatchKey, IntArray, ViewBatch
from lpld_labels.format.schema import VIEW_SCHEMA
from lpld_labels.format.views import CROP, CUTOUT_BOX, CUTOUT_FILL, MIX_BOX, DecodedViews, to_table
from lpld_labels.io.verified_parquet import VerifiedParquet
from lpld_labels.pool.block_cache import BlockCache, OpenFiles
from lpld_labels.pool.index import BatchIndex

if TYPE_CHECKING:
    from lpld_labels.pool.reader import PoolReader

_UNKNOWN = -1
_RECORD_BYTES = 2048  # Approximate memory per batch, besides its arrays.


class _Block:
    """The batches of a row group, each verified when it is first read. nbytes: bytes in memory."""

    def __init__(self, table: pa.Table, index: BatchIndex, first_row: int, batches: int, where: str) -> None:
        self._decoded = DecodedViews(table)
        self._index, self._first_row, self._where = index, first_row, where
        self._verified: dict[int, ViewBatch] = {}
        self.nbytes = self._decoded.nbytes + _RECORD_BYTES * batches

    def batch(self, number: int) -> ViewBatch:
        """Return the views of a batch after comparing their digest with the index."""
        views = self._verified.get(number)
        if views is None:
            key = self._index.key(number)
            start = int(self._index.first_rows[number]) - self._first_row
            views = self._decoded.batch(key, slice(start, start + int(self._index.rows[number])))
            if views_digest(views)[:VIEWS_SHORT] != self._index.views_digest(number):
                problem = f"views differ from those that were labelled ({key})"
                raise PoolCorruptError(problem, where=self._where, hint="restore this file")
            self._verified[number] = views
        return views


class StoredViews:
    """Reads and checks views files. Caches `cache_bytes` of row groups; keeps `open_files` files open."""

    def __init__(self, pool: PoolReader, *, cache_bytes: int, open_files: int) -> None:
        self._pool = pool
        self._index = pool.index
        self._blocks: BlockCache[_Block] = BlockCache(cache_bytes, lambda block: block.nbytes)
        self._files: OpenFiles[VerifiedParquet] = OpenFiles(open_files)
        self._groups = np.full(len(pool), _UNKNOWN, np.int32)

    def views(self, number: int) -> ViewBatch:
        """Return the views of a batch. The arrays are read-only, because the row group's memory is shared."""
        shard = int(self._index.shard[number])
        if self._groups[number] == _UNKNOWN:
            inside = self._index.in_shard(shard)
            rows = self._index.rows[inside]
            self._groups[inside] = self._file(shard).groups_of(self._index.first_rows[inside], rows)
        group = int(self._groups[number])
        # A cached row group does not need its file, which may be closed.
        return self._blocks.get((shard, group), lambda: self._read(shard, group)).batch(number)

    def images(self, number: int) -> IntArray:
        return self.views(number).images

    def clear(self) -> None:
        self._files.clear()
        self._blocks.clear()

    def _file(self, shard: int) -> VerifiedParquet:
        entry = self._pool.manifest.files_of("views")[shard]
        return self._files.get(shard, lambda: self._pool.open_parquet(entry, VIEW_SCHEMA))

    def _read(self, shard: int, group: int) -> _Block:
        file = self._file(shard)
        first, last = int(file.starts[group]), int(file.starts[group + 1])
        table = file.read(group)
        inside = self._index.in_rows(shard, first, last)
        check_views(table, self._pool, inside, where=file.where)
        return _Block(table, self._index, first, len(inside), file.where)


class DrawnViews:
    """Draws views from (seed, epoch, batch) as SPEC.md defines. Verifies them by the digests in the index."""

    def __init__(self, pool: PoolReader, *, cache_bytes: int) -> None:
        self._pool = pool
        self._drawn: BlockCache[ViewBatch] = BlockCache(cache_bytes, _bytes_of)

    def views(self, number: int) -> ViewBatch:
        """Return the views of a batch. The arrays are read-only, because callers share them."""
        return self._drawn.get(number, lambda: self._draw(number))

    def images(self, number: int) -> IntArray:
        """Return the image table rows of a batch's views, int32 [B], without drawing the other columns."""
        key, header = self._pool.index.key(number), self._pool.header
        return draw_images(
            len(self._pool.images),
            seed=header.seed or 0,
            epoch=key.epoch,
            batch=key.batch,
            batch_size=header.batch_size,
        )

    def clear(self) -> None:
        self._drawn.clear()

    def _draw(self, number: int) -> ViewBatch:
        pool, index = self._pool, self._pool.index
        key = index.key(number)
        problem = "drawing from the seed gives a batch of a different size"
        if len(self.images(number)) == int(index.rows[number]):
            views = _drawn(pool.header, pool.images, key, index.strength(number))
            if views_digest(views)[:VIEWS_SHORT] == index.views_digest(number):
                return views
            problem = "drawn views differ from those that were labelled"
        hint = "restore pool.json, the index and the image table"
        raise PoolCorruptError(f"{problem} ({key})", where=pool.location, hint=hint)


def _drawn(header: PoolHeader, images: ImageTable, key: BatchKey, strength: float | None) -> ViewBatch:
    return draw_views(
        header.augmentation,
        images,
        seed=header.seed or 0,
        epoch=key.epoch,
        batch=key.batch,
        batch_size=header.batch_size,
        strength=strength,
    )


def _bytes_of(views: ViewBatch) -> int:
    arrays = [views.images, views.crops, views.flips]
    arrays += [] if views.mix is None else [views.mix.partner]
    arrays += [] if views.cutout is None else [views.cutout.boxes, views.cutout.fill]
    arrays += [] if views.patch_order is None else [views.patch_order]
    return _RECORD_BYTES + sum(array.nbytes for array in arrays)


def require_drawn(views: ViewBatch, header: PoolHeader, images: ImageTable) -> None:
    """Refuse views that must be stored, because drawing them from the seed does not give the same views."""
    key = views.key
    problem = header.augmentation.drawing_problem() and "their augmentation cannot be drawn"
    if header.seed is None:
        problem = "the pool has no seed"
    if problem is None and key.batch < batches_per_epoch(len(images), header.batch_size):
        drawn = _drawn(header, images, key, None if views.mix is None else views.mix.strength)
        if views_digest(drawn) == views_digest(views):
            return
    raise InvalidArgumentError(
        f"views of {key} must be stored: {problem or 'drawing them gives different views'}",
        expected="views that were drawn from the pool's seed, as `build` does",
        hint="store them (--views stored), as required for imported pools and pools for other programs",
    )


Booleans = npt.NDArray[np.bool_]
Long = npt.NDArray[np.int64]
_FEATURES = {
    "mix_slot": ("mix_slot", "mix_strength"),
    "mix_top": MIX_BOX,
    "cutout_top": CUTOUT_BOX + CUTOUT_FILL,
    "patch_order": ("patch_order",),
}
"""Groups of columns that are null in the same rows, keyed by one column of each group."""


def check_views(table: pa.Table, pool: PoolReader, numbers: Long, *, where: str) -> None:
    """Refuse a views table with invalid rows, or with batches other than `numbers`, in this order."""
    index = pool.index
    rows = index.rows[numbers].astype(np.int64)
    if table.num_rows != int(rows.sum()):
        raise PoolCorruptError(
            "views disagree with the batch index",
            where=where,
            expected=f"{int(rows.sum())} rows",
            got=table.num_rows,
        )
    checks = _Checks(table, rows, where)
    checks.keys(np.repeat(index.epochs[numbers], rows), np.repeat(index.batches[numbers], rows))
    checks.values(pool.images, pool.header.augmentation)


def require_readable_views(views: ViewBatch, images: ImageTable, augmentation: Augmentation) -> None:
    """Refuse views that readers of a pool with these images would refuse."""
    checks = _Checks(to_table([views]), np.array([views.rows]), str(views.key))
    try:
        checks.values(images, augmentation)
    except PoolCorruptError as error:
        raise InvalidBatchError(error.problem, where=views.key) from None


class _Checks:
    """Checks of the rows of a views file. rows: int64 [n], number of rows of each batch."""

    def __init__(self, table: pa.Table, rows: Long, where: str) -> None:
        self._table, self._where = table, where
        self._first = np.repeat(np.cumsum(rows) - rows, rows)  # For each row, the first row of its batch.
        self._batch_rows = np.repeat(rows, rows)

    def keys(self, epochs: IntArray, batches: IntArray) -> None:
        slots = np.arange(len(self._first)) - self._first
        for name, values in {"epoch": epochs, "batch": batches, "slot": slots}.items():
            good = self._table[name].to_numpy() == values
            self._require(good, f"column '{name}' disagrees with the batch index")

    def values(self, images: ImageTable, augmentation: Augmentation) -> None:
        self.crops(images)
        self.nulls()
        self.boxes(augmentation)
        self.patches()

    def crops(self, images: ImageTable) -> None:
        image = self._table["image"].to_numpy()
        inside = (image >= 0) & (image < len(images))
        self._require(inside, f"image outside the image table of {len(images)} rows")
        top, left, height, width = (self._table[name].to_numpy().astype(np.int64) for name in CROP)
        good = (top >= 0) & (left >= 0) & (height >= 1) & (width >= 1)
        good &= (top + height <= images.heights[image]) & (left + width <= images.widths[image])
        self._require(good, "crop outside its image")

    def nulls(self) -> None:
        """Require that all rows of a batch or none have a feature, and that each mix box has a partner."""
        present: dict[str, Booleans] = {}
        for name, columns in _FEATURES.items():
            valid = self._table[name].is_valid().to_numpy()
            for column in columns:
                other = self._table[column].is_valid().to_numpy()
                self._require(valid == other, f"only one of '{name}' and '{column}' is null")
            self._require(valid == valid[self._first], f"column '{name}' is null in a part of a batch")
            present[name] = valid
        self._require(~present["mix_top"] | present["mix_slot"], "mix box without a mixing partner")

    def boxes(self, augmentation: Augmentation) -> None:
        partner = arrow.filled(self._table["mix_slot"], 0)
        self._require((partner >= 0) & (partner < self._batch_rows), "mixing partner outside the batch")
        strength = arrow.filled(self._table["mix_strength"], 0.0)
        good = (strength >= 0) & (strength <= 1) & ~np.signbit(strength)
        self._require(good, "mix_strength outside 0 to 1")
        size = (augmentation.output_height, augmentation.output_width)
        for box in (MIX_BOX, CUTOUT_BOX):
            top, left, bottom, right = (arrow.filled(self._table[name], 0) for name in box)
            good = (top >= 0) & (left >= 0) & (top <= bottom) & (left <= right)
            good &= (bottom <= size[0]) & (right <= size[1])
            kind = box[0].split("_", maxsplit=1)[0]
            self._require(good, f"{kind} box outside the {size[0]} x {size[1]} view")
        for name in ("mix_strength", *MIX_BOX):
            values = arrow.filled(self._table[name], 0)
            self._require(values == values[self._first], f"column '{name}' differs within a batch")

    def patches(self) -> None:
        column = self._table["patch_order"].combine_chunks()
        if column.null_count == len(column):
            return
        lengths = np.diff(arrow.list_offsets(column))
        self._require(lengths == lengths[self._first], "patch orders differ in length")
        sides = np.sqrt(lengths).astype(np.int64)
        valid = self._table["patch_order"].is_valid().to_numpy()
        good = ~valid | ((sides * sides == lengths) & (sides >= 1) & (sides <= 15))
        self._require(good, "number of tiles in a patch order is not a square from 1 to 225")
        for length in np.unique(lengths[valid]).tolist():
            chosen = np.flatnonzero(valid & (lengths == length))
            tiles = arrow.flattened(arrow.take(column, chosen)).reshape(len(chosen), length)
            good = np.ones(len(valid), bool)
            good[chosen] = (np.sort(tiles, axis=1) == np.arange(length)).all(axis=1)
            self._require(good, "patch order is not a permutation")

    def _require(self, good: Booleans, problem: str) -> None:
        if good.all():
            return
        row = int(np.argmin(good))
        place = {name: self._table[name][row].as_py() for name in ("epoch", "batch", "slot")}
        raise PoolCorruptError(
            f"{problem}, first at {place} ({int((~good).sum())} rows)",
            where=self._where,
            hint="restore this file",
        )
