"""The views of a pool: read from its views files, or drawn again from its seed.

Stored views are checked against the batch index and the image table, a whole row group at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.errors import InvalidArgumentError, PoolCorruptError
from lpld_labels.format import arrow
from lpld_labels.format.digests import VIEWS_SHORT, views_digest
from lpld_labels.format.drawing import batches_per_epoch, draw_images, draw_views
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation, PoolHeader
from lpld_labels.format.records import BatchKey, IntArray, ViewBatch
from lpld_labels.format.views import CROP, CUTOUT_BOX, CUTOUT_FILL, MIX_BOX, DecodedViews
from lpld_labels.io.verified_parquet import VerifiedParquet
from lpld_labels.pool.block_cache import BlockCache, OpenFiles
from lpld_labels.pool.index import BatchIndex

_UNKNOWN = -1
_RECORD_BYTES = 2048
"""Approximate memory of a batch's record, besides the values of its arrays."""


class _Place(NamedTuple):
    """A batch in a row group: its key, its rows there, and the digest of the views that were labelled."""

    key: BatchKey
    rows: slice
    digest: bytes


class _Block:
    """The batches of a row group by number, each verified when it is first read. nbytes: their memory."""

    def __init__(self, decoded: DecodedViews, places: Mapping[int, _Place], where: str) -> None:
        self._decoded, self._places, self._where = decoded, places, where
        self._verified: dict[int, ViewBatch] = {}
        self.nbytes = decoded.nbytes + _RECORD_BYTES * len(places)

    def batch(self, number: int) -> ViewBatch:
        """Return the views of a batch; raise PoolCorruptError unless they are those that were labelled."""
        views = self._verified.get(number)
        if views is None:
            place = self._places[number]
            views = self._decoded.batch(place.key, place.rows)
            if views_digest(views)[:VIEWS_SHORT] != place.digest:
                raise PoolCorruptError(
                    f"views are not those that were labelled ({place.key})",
                    where=self._where,
                    hint="restore this file",
                )
            self._verified[number] = views
        return views


class StoredViews:
    """Views of views files, read by row group, every value checked before it is used.

    open_file: opens the views file of a shard. cache_bytes: memory for decoded row groups.
    """

    def __init__(
        self,
        index: BatchIndex,
        checker: Callable[[], ViewChecker],
        open_file: Callable[[int], VerifiedParquet],
        *,
        cache_bytes: int,
        open_files: int,
    ) -> None:
        self._index = index
        self._checker = checker
        self._open_file = open_file
        self._blocks: BlockCache[_Block] = BlockCache(cache_bytes, lambda block: block.nbytes)
        self._files: OpenFiles[VerifiedParquet] = OpenFiles(open_files)
        self._groups = np.full(len(index), _UNKNOWN, np.int32)

    def views(self, number: int) -> ViewBatch:
        """Return the views of a batch, read-only: its arrays are views into the row group."""
        shard = int(self._index.shard[number])
        if self._groups[number] == _UNKNOWN:
            inside = self._index.in_shard(shard)
            rows = self._index.rows[inside]
            self._groups[inside] = self._file(shard).groups_of(self._index.first_rows[inside], rows)
        group = int(self._groups[number])
        # A cached row group does not need its file, which may be closed.
        block = self._blocks.get((shard, group), lambda: self._read(self._file(shard), shard, group))
        return block.batch(number)

    def images(self, number: int) -> IntArray:
        """Return which images a batch shows: int32 [B]."""
        return self.views(number).images

    def clear(self) -> None:
        """Close files and forget decoded row groups."""
        self._files.clear()
        self._blocks.clear()

    def _file(self, shard: int) -> VerifiedParquet:
        return self._files.get(shard, lambda: self._open_file(shard))

    def _read(self, file: VerifiedParquet, shard: int, group: int) -> _Block:
        table = file.read(group)
        inside = self._index.in_rows(shard, file.starts[group], file.starts[group + 1])
        keys = self._index.keys_at(inside)
        rows = self._index.rows[inside].astype(np.int64)
        self._checker().check(table, keys, rows, where=file.where)
        stops = np.cumsum(rows)
        parts = map(slice, (stops - rows).tolist(), stops.tolist())
        places = map(_Place, keys, parts, self._index.views_digests(inside))
        return _Block(DecodedViews(table), dict(zip(inside.tolist(), places, strict=True)), file.where)


class DrawnViews:
    """Views drawn again from (seed, epoch, batch), see SPEC.md. Each batch is compared with its digest.

    cache_bytes: memory for drawn views.
    """

    def __init__(
        self,
        index: BatchIndex,
        header: PoolHeader,
        images: Callable[[], ImageTable],
        where: str,
        *,
        cache_bytes: int,
    ) -> None:
        self._index = index
        self._header = header
        self._images = images
        self._where = where
        self._drawn: BlockCache[ViewBatch] = BlockCache(cache_bytes, _bytes_of)

    def views(self, number: int) -> ViewBatch:
        """Return the views of a batch, read-only: its arrays are shared."""
        return self._drawn.get(number, lambda: self._draw(number))

    def _draw(self, number: int) -> ViewBatch:
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
        """Return which images a batch shows, int32 [B]; the rest of its views is not drawn."""
        key = self._index.key(number)
        return draw_images(
            len(self._images()),
            seed=self._header.seed or 0,
            epoch=key.epoch,
            batch=key.batch,
            batch_size=self._header.batch_size,
        )

    def clear(self) -> None:
        """Forget drawn views."""
        self._drawn.clear()

    def _wrong(self, key: BatchKey, problem: str) -> PoolCorruptError:
        return PoolCorruptError(
            f"{problem} ({key})", where=self._where, hint="restore pool.json, the index and the image table"
        )


ViewSource: TypeAlias = StoredViews | DrawnViews


def _bytes_of(views: ViewBatch) -> int:
    """Return the memory of a batch."""
    arrays = [views.images, views.crops, views.flips]
    arrays += [] if views.mix is None else [views.mix.partner]
    arrays += [] if views.cutout is None else [views.cutout.boxes, views.cutout.fill]
    arrays += [] if views.patch_order is None else [views.patch_order]
    return _RECORD_BYTES + sum(array.nbytes for array in arrays)


def require_drawn(views: ViewBatch, header: PoolHeader, images: ImageTable) -> None:
    """Refuse a batch for a pool with drawn views unless drawing gives exactly these views."""
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


# Checks of stored views

Booleans = npt.NDArray[np.bool_]
Long = npt.NDArray[np.int64]
_FEATURES = {
    "mix_slot": ("mix_slot", "mix_strength"),
    "mix_top": MIX_BOX,
    "cutout_top": CUTOUT_BOX + CUTOUT_FILL,
    "patch_order": ("patch_order",),
}
"""Columns that are null together, by the one that is tested."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewChecker:
    """Checks rows of a views file. images, augmentation: what views may refer to and how large they are."""

    images: ImageTable
    augmentation: Augmentation

    def check(self, table: pa.Table, keys: list[BatchKey], rows: Long, *, where: str) -> None:
        """Refuse a table unless it holds exactly these batches with values in range.

        keys, rows [n]: the batches the index places there, in order, and their rows.
        """
        if table.num_rows != int(rows.sum()):
            raise PoolCorruptError(
                "views disagree with the batch index",
                where=where,
                expected=f"{int(rows.sum())} rows",
                got=table.num_rows,
            )
        starts = np.cumsum(rows) - rows
        _check_keys(table, keys, rows, starts, where)
        self._check_crops(table, where)
        _check_nulls(table, starts, where)
        self._check_boxes(table, np.repeat(rows, rows), where)
        _check_same_in_batch(table, np.repeat(starts, rows), where)
        _check_patches(table, starts, where)

    def _check_crops(self, table: pa.Table, where: str) -> None:
        images = table["image"].to_numpy()
        inside = (images >= 0) & (images < len(self.images))
        _require(table, inside, f"image outside the image table of {len(self.images)}", where)
        top, left, height, width = (table[name].to_numpy().astype(np.int64) for name in CROP)
        good = (top >= 0) & (left >= 0) & (height >= 1) & (width >= 1)
        good &= (top + height <= self.images.heights[images]) & (left + width <= self.images.widths[images])
        _require(table, good, "crop outside its image", where)

    def _check_boxes(self, table: pa.Table, batch_rows: Long, where: str) -> None:
        partner = arrow.filled(table["mix_slot"], 0)
        _require(table, (partner >= 0) & (partner < batch_rows), "mixing partner outside the batch", where)
        strength = arrow.filled(table["mix_strength"], 0.0)
        good = (strength >= 0) & (strength <= 1) & ~np.signbit(strength)
        _require(table, good, "mix_strength outside 0 to 1", where)
        size = (self.augmentation.output_height, self.augmentation.output_width)
        for box in (MIX_BOX, CUTOUT_BOX):
            top, left, bottom, right = (arrow.filled(table[name], 0) for name in box)
            good = (top >= 0) & (left >= 0) & (top <= bottom) & (left <= right)
            good &= (bottom <= size[0]) & (right <= size[1])
            kind = box[0].split("_", maxsplit=1)[0]
            _require(table, good, f"{kind} box outside the {size[0]} x {size[1]} view", where)


def _check_keys(table: pa.Table, keys: list[BatchKey], rows: Long, starts: Long, where: str) -> None:
    expected = {
        "epoch": np.repeat([key.epoch for key in keys], rows),
        "batch": np.repeat([key.batch for key in keys], rows),
        "slot": np.arange(int(rows.sum())) - np.repeat(starts, rows),
    }
    for name, values in expected.items():
        _require(
            table, table[name].to_numpy() == values, f"column '{name}' is not what the index says", where
        )


def _check_nulls(table: pa.Table, starts: Long, where: str) -> None:
    """A feature is there in all rows of a batch or in none, and a box only where there is a partner."""
    present: dict[str, Booleans] = {}
    for name, columns in _FEATURES.items():
        first = table[name].is_valid().to_numpy()
        for column in columns:
            other = table[column].is_valid().to_numpy()
            _require(table, first == other, f"columns '{name}' and '{column}' are not null together", where)
        _require(table, first == _of_batch(first, starts), f"'{name}' is null in a part of a batch", where)
        present[name] = first
    _require(table, ~present["mix_top"] | present["mix_slot"], "a mix box without a partner", where)


def _check_same_in_batch(table: pa.Table, first_of_row: Long, where: str) -> None:
    for name in ("mix_strength", *MIX_BOX):
        values = arrow.filled(table[name], 0)
        _require(table, values == values[first_of_row], f"'{name}' differs within a batch", where)


def _check_patches(table: pa.Table, starts: Long, where: str) -> None:
    column = table["patch_order"].combine_chunks()
    if column.null_count == len(column):
        return
    lengths = np.diff(arrow.list_offsets(column))
    _require(table, lengths == _of_batch(lengths, starts), "patch orders differ in length", where)
    sides = np.sqrt(lengths).astype(np.int64)
    valid = table["patch_order"].is_valid().to_numpy()
    good = ~valid | ((sides * sides == lengths) & (sides >= 1) & (sides <= 15))
    _require(table, good, "patch order of a number of tiles that is no square from 1 to 225", where)
    for length in np.unique(lengths[valid]).tolist():
        chosen = np.flatnonzero(valid & (lengths == length))
        tiles = arrow.flattened(arrow.take(column, chosen)).reshape(len(chosen), length)
        whole = np.ones(len(valid), bool)
        whole[chosen] = (np.sort(tiles, axis=1) == np.arange(length)).all(axis=1)
        _require(table, whole, "patch order is no permutation", where)


def _of_batch(values: npt.NDArray[np.generic], starts: Long) -> npt.NDArray[np.generic]:
    """Return, for each row, the value of its batch's first row."""
    lengths = np.diff(starts, append=len(values))
    return np.repeat(values[starts], lengths) if len(starts) else values


def _require(table: pa.Table, good: Booleans, problem: str, where: str) -> None:
    if good.all():
        return
    row = int(np.argmin(good))
    place = {name: table[name][row].as_py() for name in ("epoch", "batch", "slot")}
    raise PoolCorruptError(
        f"{problem}, first at {place} ({int((~good).sum())} rows)", where=where, hint="restore this file"
    )
