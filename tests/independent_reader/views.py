"""Views of a batch: their checks, their digest, and reading them from a views file."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import need
from .image_table import ImageTable
from .parquet import Parquet
from .schema import CUTOUT_BOX, FILLS, MIX_BOX

NONE, CUTMIX, MIXUP = 0, 1, 2
MAX_TILES = 15 * 15
_SQUARES = frozenset(n * n for n in range(1, 16))
Ints = NDArray[np.int32]
Slice = tuple[Any, NDArray[np.bool_]]


@dataclass(frozen=True)
class Views:
    """All views of one batch; a feature the batch does not have is None."""

    epoch: int
    batch: int
    images: Ints
    crops: Ints  # top, left, height, width
    flips: NDArray[np.bool_]
    partners: Ints | None = None
    strength: float | None = None
    mix_box: tuple[int, ...] | None = None  # top, left, bottom, right
    cutouts: Ints | None = None  # top, left, bottom, right
    fills: NDArray[np.uint8] | None = None
    patches: NDArray[np.uint8] | None = None

    @property
    def mix(self) -> int:
        """Give the mix kind of the digest."""
        return NONE if self.partners is None else MIXUP if self.mix_box is None else CUTMIX

    def digest(self) -> bytes:
        """Give the views digest, all 32 bytes."""
        tiles = 0 if self.patches is None else self.patches.shape[1]
        flags = (self.cutouts is not None) + 2 * tiles
        out = hashlib.sha256(struct.pack("<5q", self.epoch, self.batch, len(self.images), self.mix, flags))
        out.update(self.images.astype("<i4").tobytes())
        out.update(self.crops.astype("<i4").tobytes())
        out.update(self.flips.astype(np.uint8).tobytes())
        if self.partners is not None:
            out.update(self.partners.astype("<i4").tobytes())
            out.update(struct.pack("<d", self.strength))
            if self.mix_box is not None:
                out.update(struct.pack("<4q", *self.mix_box))
        if self.cutouts is not None and self.fills is not None:
            out.update(self.cutouts.astype("<i4").tobytes())
            out.update(self.fills.tobytes())
        if self.patches is not None:
            out.update(self.patches.tobytes())
        return out.digest()


def _check_boxes(boxes: Ints, size: tuple[int, int], file: str, field: str) -> None:
    """Refuse boxes (top, left, bottom, right) that leave the output or are turned over."""
    inside = (boxes[:, :2] >= 0) & (boxes[:, :2] <= boxes[:, 2:]) & (boxes[:, 2:] <= np.array(size))
    need(inside.all(), file, field, "box out of range")


def check_views(views: Views, table: ImageTable, size: tuple[int, int], file: str) -> None:
    """Refuse views out of range."""
    images, rows = views.images, len(views.images)
    need(((images >= 0) & (images < len(table.paths))).all(), file, "image", "no row of the image table")
    crops = views.crops.astype(np.int64)
    need((crops[:, :2] >= 0).all() and (crops[:, 2:] >= 1).all(), file, "crop", "out of range")
    limits = np.stack([table.heights[images], table.widths[images]], axis=1)
    need((crops[:, :2] + crops[:, 2:] <= limits).all(), file, "crop", "leaves its image")
    if views.partners is not None:
        fits = (views.partners >= 0) & (views.partners < rows)
        need(fits.all(), file, "mix_slot", "no slot of the batch")
        strength = math.nan if views.strength is None else views.strength
        good = 0 <= strength <= 1 and math.copysign(1, strength) == 1
        need(good, file, "mix_strength", f"{strength} is not from 0 to 1")
    if views.mix_box is not None:
        _check_boxes(np.array([views.mix_box], np.int32), size, file, "mix_top")
    if views.cutouts is not None:
        _check_boxes(views.cutouts, size, file, "cutout_top")
    if views.patches is not None:
        tiles = views.patches.shape[1]
        need(tiles in _SQUARES, file, "patch_order", f"{tiles} tiles are no grid of 1 to 15")
        ordered = np.sort(views.patches, axis=1) == np.arange(tiles)
        need(ordered.all(), file, "patch_order", "no permutation")


def _part(column: Slice, first: int, stop: int) -> Slice:
    """Cut rows out of an optional column: the values that are there, and which rows have one."""
    values, there = column
    before = int(np.count_nonzero(there[:first]))
    inside = there[first:stop]
    return values[before : before + int(np.count_nonzero(inside))], inside


class ViewsFile:
    """One views file; keeps the row group it read last."""

    def __init__(self, table: Parquet) -> None:
        """Wrap a file whose footer is proven."""
        self.table = table
        self._group = -1
        self._columns: dict[str, Any] = {}

    def _load(self, group: int) -> None:
        """Read all columns of a row group."""
        if group == self._group:
            return
        self._group, self._columns = -1, {}
        for leaf in self.table.leaves:
            column = self.table.column(group, leaf.dotted)
            if leaf.max_repetition:
                self._columns[leaf.name] = column
            elif column.definition is not None:
                self._columns[leaf.name] = column.values, column.definition == 1
            else:
                self._columns[leaf.name] = column.values, np.ones(len(column.values), bool)
        self._patch_rows(group)
        self._group = group

    def _patch_rows(self, group: int) -> None:
        """Turn the levels of `patch_order` into row starts, and check them."""
        column, file = self._columns["patch_order"], self.table.entry.path
        starts = np.flatnonzero(column.repetition == 0)
        good = len(starts) == self.table.groups[group].rows and (not len(starts) or starts[0] == 0)
        need(good, file, "patch_order", "levels do not give one list per row")
        need((column.definition != 1).all(), file, "patch_order", "an empty list")
        inner = column.definition[column.repetition == 1]
        need((inner == 2).all(), file, "patch_order", "null within a list")
        bounds = np.append(starts, len(column.repetition))
        there = column.definition[starts] == 2
        self._columns["patch_order"] = (column.values, there, np.diff(bounds))

    def _optional(self, names: tuple[str, ...], first: int, stop: int) -> Ints | None:
        """Read integer columns that are null in all rows or in none, as rows."""
        parts = [_part(self._columns[name], first, stop) for name in names]
        there = np.stack([part[1] for part in parts])
        if not there.any():
            return None
        need(there.all(), self.table.entry.path, names[0], "null in some rows of a batch and not in others")
        return np.stack([part[0] for part in parts], axis=1)

    def _patches(self, first: int, stop: int) -> NDArray[np.uint8] | None:
        """Read the patch orders of some rows."""
        values, there, lengths = self._columns["patch_order"]
        inside, file = there[first:stop], self.table.entry.path
        if not inside.any():
            return None
        need(inside.all(), file, "patch_order", "null in some rows of a batch and not in others")
        here = lengths[first:stop]
        need((here == here[0]).all() and here[0] <= MAX_TILES, file, "patch_order", "lengths differ")
        before = int(lengths[:first][there[:first]].sum())
        part = values[before : before + int(here.sum())]
        need(((part >= 0) & (part <= 255)).all(), file, "patch_order", "not from 0 to 255")
        return np.asarray(part, np.uint8).reshape(len(here), int(here[0]))

    def read(self, epoch: int, batch: int, first_row: int, rows: int) -> Views:
        """Read the views of one batch; `check_views` is still to be called."""
        group = self.table.group_of(first_row, rows)
        self._load(group)
        file = self.table.entry.path
        first = first_row - self.table.groups[group].first
        stop = first + rows

        def required(name: str) -> Any:
            """Cut the batch out of a column that is never null."""
            return self._columns[name][0][first:stop]

        need((required("epoch") == epoch).all(), file, "epoch", f"not {epoch} as in the index")
        need((required("batch") == batch).all(), file, "batch", f"not {batch} as in the index")
        need((required("slot") == np.arange(rows)).all(), file, "slot", "does not count 0, 1, 2, ...")
        crops = np.stack([required(f"crop_{n}") for n in ("top", "left", "height", "width")], axis=1)
        partners = self._optional(("mix_slot",), first, stop)
        found, there = _part(self._columns["mix_strength"], first, stop)
        same = there.all() == there.any() == (partners is not None)
        need(same, file, "mix_strength", "null, or not, beside mix_slot")
        boxes = self._optional(MIX_BOX, first, stop)
        need(boxes is None or partners is not None, file, "mix_top", "a box in a batch that is not mixed")
        strength = None
        if partners is not None:
            raw = np.asarray(found).view(np.uint64)
            need((raw == raw[0]).all(), file, "mix_strength", "differs within a batch")
            strength = float(found[0])
        if boxes is not None:
            need((boxes == boxes[0]).all(), file, "mix_top", "the box differs within a batch")
        cutouts = self._optional(CUTOUT_BOX, first, stop)
        fills = self._optional(FILLS, first, stop)
        need((cutouts is None) == (fills is None), file, "cutout_red", "null, or not, beside cutout_top")
        if fills is not None:
            need(((fills >= 0) & (fills <= 255)).all(), file, "cutout_red", "not from 0 to 255")
        return Views(
            epoch, batch, required("image"), crops, required("flip"),
            None if partners is None else partners[:, 0], strength,
            None if boxes is None else tuple(int(v) for v in boxes[0]),
            cutouts, None if fills is None else fills.astype(np.uint8), self._patches(first, stop),
        )  # fmt: skip
