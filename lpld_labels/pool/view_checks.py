"""Stored views are what the index and the image table allow, checked for a whole row group at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.errors import PoolCorruptError
from lpld_labels.format import arrow
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.records import BatchKey
from lpld_labels.format.views import CROP, CUTOUT_BOX, CUTOUT_FILL, MIX_BOX

Booleans = npt.NDArray[np.bool_]
Long = npt.NDArray[np.int64]
_FEATURES = {
    "mix_slot": ("mix_slot", "mix_strength"),
    "mix_top": MIX_BOX,
    "cutout_top": CUTOUT_BOX + CUTOUT_FILL,
    "patch_order": ("patch_order",),
}
"""Columns that are null together, by the one that speaks for them."""


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
