"""The list that SRe2L and its many descendants save for every batch.

[0] coords       float32 or float16 [B, 4]: top / H, left / W, height / H, width / W of the crop
[1] flips        bool [B], mirrored after crop and resize
    or cut-outs  float32 [B, 7] (ImageNet-21K; see pixels.py)
[2] partners     integers [B], each view's partner in the batch; None without mixing
[3] lambda       the raw Beta draw; None without mixing
[4] box          [r1, c1, r2, c2] in output pixels, rows first although the programs call them x;
                 None for MixUp and without mixing
[5] labels       float16 or float32 [B, C], logits before softmax; or top-k values [B, k]
[6] image ids    integers [B] (G-VBSM)
    or classes   integers [B, k] of the top-k values (LPQLD)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import LabelFileError
from lpld_labels.format.limits import MAX_SIDE
from lpld_labels.format.records import BoolArray, Box, IntArray, LabelArray, Mix
from lpld_labels.format.schema import MixKind
from lpld_labels.interop.importers.torch_zip import read_torch_zip
from lpld_labels.interop.pixels import CUTOUT_COLUMNS

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchList:
    """One file's list, checked and with names.

    coords: [B, 4] fractions from 0 to 1. flips: bool [B]. cutouts: [B, 7] or None.
    labels: float16 or float32 [B, C], or the top-k values [B, k] where `classes` is given.
    classes: int32 [B, k] or None. images: int32 [B] or None.
    """

    coords: npt.NDArray[np.floating[Any]]
    flips: BoolArray
    cutouts: npt.NDArray[np.floating[Any]] | None
    mix: Mix | None
    labels: LabelArray
    classes: IntArray | None
    images: IntArray | None

    @property
    def rows(self) -> int:
        return len(self.coords)

    @property
    def mix_kind(self) -> MixKind:
        return "none" if self.mix is None else self.mix.kind


def read_batch_list(path: Path) -> BatchList:
    """Read and check one file."""
    return _Parser(path).parse(read_torch_zip(path))


class _Parser:
    def __init__(self, path: Path) -> None:
        self._path = path

    def _error(self, field: str, expected: object, got: object) -> LabelFileError:
        hint = "this file is not a label batch of a known format"
        return LabelFileError(
            f"item {field} is wrong", where=self._path, expected=expected, got=got, hint=hint
        )

    def parse(self, saved: object) -> BatchList:
        if isinstance(saved, list) and len(saved) in (7, 8) and isinstance(saved[2], list):
            raise LabelFileError(
                "this batch was labelled with RandAugment",
                where=self._path,
                expected="views made by crop, flip, cut-out and mixing alone",
                got=f"{len(saved[2])} operations on every whole image before its crop",
                hint="a pool cannot express them, nor does the folder: LPQLD's program rounds their "
                "parameters to half precision after use; label again without --use_rand_aug",
            )
        if not isinstance(saved, list) or len(saved) not in (6, 7):
            got = f"a list of {len(saved)}" if isinstance(saved, list) else type(saved).__name__
            raise LabelFileError(
                "not a label batch", where=self._path, expected="a list of 6 or 7 items", got=got
            )
        coords = self._floats(saved, 0, "coords", columns=4)
        if not ((coords >= 0) & (coords <= 1)).all():
            raise self._error("[0] coords", "fractions from 0 to 1", "something else")
        rows = len(coords)
        flips, cutouts = self._flips_or_cutouts(saved, rows)
        labels = self._floats(saved, 5, "labels", rows=rows)
        images, classes = self._seventh(saved, labels) if len(saved) == 7 else (None, None)
        return BatchList(
            coords=coords,
            flips=flips,
            cutouts=cutouts,
            mix=self._mix(saved, rows),
            labels=labels,
            classes=classes,
            images=images,
        )

    def _floats(
        self,
        saved: list[object],
        place: int,
        field: str,
        *,
        rows: int | None = None,
        columns: int | None = None,
    ) -> npt.NDArray[np.floating[Any]]:
        item = saved[place]
        shape = [rows or "B", columns or "C"]
        expected = f"float16 or float32 {shape}"
        if not isinstance(item, np.ndarray):
            raise self._error(f"[{place}] {field}", expected, type(item).__name__)
        good = item.dtype in (np.float16, np.float32) and item.ndim == 2 and len(item) > 0
        if not good or (rows or len(item), columns or item.shape[1]) != item.shape:
            raise self._error(f"[{place}] {field}", expected, f"{item.dtype} {list(item.shape)}")
        return item

    def _flips_or_cutouts(
        self, saved: list[object], rows: int
    ) -> tuple[BoolArray, npt.NDArray[np.floating[Any]] | None]:
        item = saved[1]
        if isinstance(item, np.ndarray) and item.dtype == np.bool_ and item.shape == (rows,):
            return item, None
        if isinstance(item, np.ndarray) and item.dtype.kind == "f" and item.shape == (rows, CUTOUT_COLUMNS):
            if not np.isfinite(item).all():
                raise self._error("[1] cut-outs", "finite numbers", "something else")
            return np.zeros(rows, np.bool_), item
        got = f"{item.dtype} {list(item.shape)}" if isinstance(item, np.ndarray) else type(item).__name__
        expected = f"flips bool [{rows}] or cut-outs float [{rows}, {CUTOUT_COLUMNS}]"
        raise self._error("[1]", expected, got)

    def _integers(self, item: object, field: str, shape: tuple[int, ...]) -> IntArray:
        if not isinstance(item, np.ndarray) or item.dtype.kind not in "iu" or item.shape != shape:
            got = f"{item.dtype} {list(item.shape)}" if isinstance(item, np.ndarray) else type(item).__name__
            raise self._error(field, f"integers {list(shape)}", got)
        if item.size and not 0 <= int(item.min()) <= int(item.max()) < 2**31:
            raise self._error(field, "integers >= 0", f"{item.min()} to {item.max()}")
        return item.astype(np.int32)

    def _mix(self, saved: list[object], rows: int) -> Mix | None:
        partner, strength, box = saved[2:5]
        if partner is None and strength is None and box is None:
            return None
        partners = self._integers(partner, "[2] partners", (rows,))
        if int(partners.max()) >= rows:
            raise self._error("[2] partners", f"slots below {rows}", int(partners.max()))
        if not isinstance(strength, float | np.floating) or not 0.0 <= float(strength) <= 1.0:
            got = repr(strength) if isinstance(strength, float | np.floating) else type(strength).__name__
            raise self._error("[3] lambda", "a number from 0 to 1", got)
        return Mix(partner=partners, strength=float(strength), box=None if box is None else self._box(box))

    def _box(self, item: object) -> Box:
        expected = "[r1, c1, r2, c2] with 0 <= r1 <= r2 and 0 <= c1 <= c2"
        if not isinstance(item, list | tuple) or len(item) != 4:
            raise self._error("[4] box", expected, type(item).__name__)
        sides = [_whole_number(side) for side in item]
        if None in sides:
            raise self._error("[4] box", expected, [type(side).__name__ for side in item])
        box = Box(*(side or 0 for side in sides))
        if not (0 <= box.top <= box.bottom <= MAX_SIDE and 0 <= box.left <= box.right <= MAX_SIDE):
            raise self._error("[4] box", f"{expected} <= {MAX_SIDE}", [_short(side) for side in box])
        return box

    def _seventh(self, saved: list[object], labels: Array) -> tuple[IntArray | None, IntArray | None]:
        """Return image ids or top-k classes, told apart by their shape."""
        item = saved[6]
        if isinstance(item, np.ndarray) and item.ndim == 2:
            return None, self._integers(item, "[6] classes", labels.shape)
        return self._integers(item, "[6] image ids", (len(labels),)), None


def _whole_number(item: object) -> int | None:
    """Return what a program may have saved as a number: a Python or NumPy integer, or a tensor of one."""
    if isinstance(item, int) and not isinstance(item, bool):
        return item
    if isinstance(item, np.ndarray | np.integer) and item.dtype.kind in "iu" and item.size == 1:
        return int(item.item())
    return None


def _short(number: int) -> str:
    return str(number) if abs(number) < 2**63 else "a number of many digits"
