"""Read and write the list that SRe2L and its descendants save for every batch.

[0] coords       float32 or float16 [B, 4]: top / H, left / W, height / H, width / W of the crop
[1] flips        bool [B], whether the view is mirrored after crop and resize
    or cut-outs  float32 [B, 7] (ImageNet-21K; see pixels.py)
[2] partners     integers [B], each view's partner in the batch; None without mixing
[3] strength     the raw draw from the Beta distribution; None without mixing
[4] box          [r1, c1, r2, c2] in output pixels, row before column (the programs call rows x);
                 None for MixUp and without mixing
[5] labels       float16 or float32 [B, C], logits before softmax; or top-k values [B, k]
[6] images       image ids, integers [B] (G-VBSM, EDC)
    or classes   integers [B, k] of the top-k values (LPQLD)
    or weights   floats [B] (WMDD); dropped
[7] patches      order of shuffled patches, integers [B, 2, 2]; all 0, as EDC shuffles none

A layout (layouts.py) lists a program's items and the dtypes to write. Other widths can be read, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import LabelFileError
from lpld_labels.format.limits import MAX_SIDE
from lpld_labels.format.records import BoolArray, Box, IntArray, LabelArray, Mix
from lpld_labels.format.schema import MixKind
from lpld_labels.interop.pixels import CUTOUT_COLUMNS
from lpld_labels.interop.torch_file import ONE_EPOCH, read_torch_file

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Item:
    """One item of the list. dtype: the dtype to write; None for Python numbers, or to keep an array's dtype.

    optional: the item is absent if labels have a value for every class.
    """

    name: str
    dtype: str | None = None
    optional: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchFile:
    """The validated contents of one file.

    coords: [B, 4] fractions 0..1. flips: bool [B]. cutouts: [B, 7] or None. images: int32 [B] or None.
    labels: float16 or float32, [B, C] or top-k values [B, k]. classes: int32 [B, k] or None.
    """

    coords: Floats
    flips: BoolArray
    cutouts: Floats | None = None
    mix: Mix | None = None
    labels: LabelArray
    classes: IntArray | None = None
    images: IntArray | None = None

    @property
    def rows(self) -> int:
        return len(self.coords)

    @property
    def mix_kind(self) -> MixKind:
        return "none" if self.mix is None else self.mix.kind


def read_batch_file(path: Path, items: Sequence[Item]) -> BatchFile:
    """Read and validate a batch file."""
    return parse_batch(read_torch_file(path), items, where=path)


def read_batches(path: Path, layout_file: str) -> list[Any]:
    """Return the contents of each batch in a file, not validated. layout_file: see `Layout.file`."""
    if "{batch}" in layout_file:
        return [read_torch_file(path)]
    saved = read_torch_file(path, ONE_EPOCH)
    if not isinstance(saved, list) or not saved:
        got = f"a list of {len(saved)}" if isinstance(saved, list) else type(saved).__name__
        raise LabelFileError("not the batches of an epoch", where=path, expected="a list of batches", got=got)
    return saved


def parse_batch(saved: object, items: Sequence[Item], *, where: Path) -> BatchFile:
    """Validate the contents of a batch file."""
    least = sum(not item.optional for item in items)
    if isinstance(saved, list) and len(saved) in (7, 8) and isinstance(saved[2], list):
        raise LabelFileError(
            "this batch was labelled with RandAugment",
            where=where,
            expected="views made by crop, flip, cut-out and mixing alone",
            got=f"{len(saved[2])} operations on each image before the crop",
            hint="pools cannot express them, and LPQLD's program saves their parameters in half "
            "precision only; label again without --use_rand_aug",
        )
    if not isinstance(saved, list) or not least <= len(saved) <= len(items):
        got = f"a list of {len(saved)}" if isinstance(saved, list) else type(saved).__name__
        counts = f"{least} or {len(items)}" if least < len(items) else least
        raise LabelFileError("not a label batch", where=where, expected=f"a list of {counts} items", got=got)
    file = _Items(items, saved, where)
    coords = file.floats("coords", None, 4)
    if not ((coords >= 0) & (coords <= 1)).all():
        raise file.error("coords", "fractions from 0 to 1", f"{coords.min()} to {coords.max()}")
    rows = len(coords)
    flips, cutouts = file.flips_or_cutouts(rows)
    mix = file.mix(rows)
    labels = file.floats("labels", rows, None)
    file.require_no_shuffling()
    file.require_weights(rows)
    return BatchFile(
        coords=coords,
        flips=flips,
        cutouts=cutouts,
        mix=mix,
        labels=labels,
        images=file.integers("images", rows) if "images" in file.values else None,
        classes=file.integers("classes", *labels.shape) if "classes" in file.values else None,
    )


class _Items:
    """The items of one file by name, validated on access."""

    def __init__(self, items: Sequence[Item], saved: list[Any], where: Path) -> None:
        self.values = {item.name: value for item, value in zip(items, saved, strict=False)}
        self._where = where

    def error(self, name: str, expected: object, got: object = None) -> LabelFileError:
        """Return the error for the item `name`. got: what was found; None shows the item's type."""
        item = self.values[name]
        if got is None:
            got = f"{item.dtype} {list(item.shape)}" if isinstance(item, np.ndarray) else type(item).__name__
        return LabelFileError(
            f"item [{list(self.values).index(name)}] {name} is wrong",
            where=self._where,
            expected=expected,
            got=got,
            hint="this file is not a label batch of a known format",
        )

    def floats(self, name: str, rows: int | None, columns: int | None) -> Floats:
        item = self.values[name]
        good = isinstance(item, np.ndarray) and item.dtype in (np.float16, np.float32) and item.ndim == 2
        if not good or len(item) == 0 or (rows or len(item), columns or item.shape[1]) != item.shape:
            raise self.error(name, f"float16 or float32 [{rows or 'B'}, {columns or 'C'}]")
        return np.asarray(item)

    def integers(self, name: str, *shape: int) -> IntArray:
        item = self.values[name]
        if not isinstance(item, np.ndarray) or item.dtype.kind not in "iu" or item.shape != shape:
            raise self.error(name, f"integers {list(shape)}")
        if item.size and not 0 <= int(item.min()) <= int(item.max()) < 2**31:
            raise self.error(name, "integers >= 0", f"{item.min()} to {item.max()}")
        return item.astype(np.int32)

    def flips_or_cutouts(self, rows: int) -> tuple[BoolArray, Floats | None]:
        item = self.values["flips"]
        if isinstance(item, np.ndarray) and item.dtype == np.bool_ and item.shape == (rows,):
            return item, None
        if isinstance(item, np.ndarray) and item.dtype.kind == "f" and item.shape == (rows, CUTOUT_COLUMNS):
            if not np.isfinite(item).all():
                raise self.error("flips", "finite numbers (here, flips holds cut-outs)", "NaN or infinity")
            return np.zeros(rows, np.bool_), item
        raise self.error("flips", f"flips bool [{rows}] or cut-outs float [{rows}, {CUTOUT_COLUMNS}]")

    def require_no_shuffling(self) -> None:
        """Refuse patch indices other than 0. EDC's own code reads them, but leaves the patches in place."""
        if "patches" in self.values:
            item = self.values["patches"]
            rows = len(self.values["coords"])
            if (self.integers("patches", rows, 2, 2) != 0).any():
                raise self.error("patches", "0, as EDC's program shuffles no patches", item.max())

    def require_weights(self, rows: int) -> None:
        if "weights" in self.values:
            item = self.values["weights"]
            if not isinstance(item, np.ndarray) or item.dtype.kind != "f" or item.shape != (rows,):
                raise self.error("weights", f"floats [{rows}]")

    def mix(self, rows: int) -> Mix | None:
        strength = self.values["strength"]
        if self.values["partners"] is None:
            for name in ("strength", "box"):
                if self.values[name] is not None:
                    raise self.error(name, "None, as partners is None")
            return None
        partner = self.integers("partners", rows)
        if int(partner.max()) >= rows:
            raise self.error("partners", f"slots below {rows}", int(partner.max()))
        is_float = isinstance(strength, float | np.floating)
        if not is_float or not 0.0 <= float(strength) <= 1.0:
            raise self.error("strength", "a number from 0 to 1", repr(strength) if is_float else None)
        return Mix(partner=partner, strength=float(strength), box=self._box())

    def _box(self) -> Box | None:
        item = self.values["box"]
        expected = f"[r1, c1, r2, c2] with 0 <= r1 <= r2 and 0 <= c1 <= c2 <= {MAX_SIDE}"
        if item is None:
            return None
        if not isinstance(item, list | tuple) or len(item) != 4:
            raise self.error("box", expected)
        sides = [side for part in item if (side := _whole_number(part)) is not None]
        if len(sides) != 4:
            raise self.error("box", expected, [type(part).__name__ for part in item])
        box = Box(*sides)
        if not (0 <= box.top <= box.bottom <= MAX_SIDE and 0 <= box.left <= box.right <= MAX_SIDE):
            shown = [str(side) if abs(side) < 2**63 else "a number of many digits" for side in box]
            raise self.error("box", expected, shown)
        return box


def _whole_number(item: object) -> int | None:
    """Return the value of a Python integer, NumPy integer or one-element array, else None."""
    if isinstance(item, int) and not isinstance(item, bool):
        return item
    if isinstance(item, np.ndarray | np.integer) and item.dtype.kind in "iu" and item.size == 1:
        return int(item.item())
    return None


def batch_items(batch: BatchFile, items: Sequence[Item]) -> list[Any]:
    """Return the list that a program saves for a batch."""
    mix = batch.mix
    values: dict[str, Any] = {**vars(batch), "partners": None, "strength": None, "box": None}
    if batch.cutouts is not None:
        values["flips"] = batch.cutouts
    if mix is not None:
        box = None if mix.box is None else list(mix.box)
        values |= {"partners": mix.partner, "strength": mix.strength, "box": box}
    written = []
    for item in items:
        value = values[item.name]
        if value is not None and item.dtype is not None:
            boxed = isinstance(value, list)
            value = [np.array(part, item.dtype) for part in value] if boxed else value.astype(item.dtype)
        if value is not None or not item.optional:
            written.append(value)
    return written
