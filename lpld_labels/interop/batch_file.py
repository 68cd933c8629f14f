"""The list that SRe2L and its many descendants save for every batch, read and written.

[0] coords       float32 or float16 [B, 4]: top / H, left / W, height / H, width / W of the crop
[1] flips        bool [B], mirrored after crop and resize
    or cut-outs  float32 [B, 7] (ImageNet-21K; see pixels.py)
[2] partners     integers [B], each view's partner in the batch; None without mixing
[3] strength     the raw Beta draw; None without mixing
[4] box          [r1, c1, r2, c2] in output pixels, rows first although the programs call them x;
                 None for MixUp and without mixing
[5] labels       float16 or float32 [B, C], logits before softmax; or top-k values [B, k]
[6] images       image ids, integers [B] (G-VBSM)
    or classes   integers [B, k] of the top-k values (LPQLD)

A program's layout (layouts.py) says which of these items it saves and in which types it writes them. Reading
takes any type of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from lpld_labels.interop.torch_file import read_torch_file

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Item:
    """One item of the list. dtype: in which it is written; None for plain numbers, or as the labels are.

    optional: absent where labels are whole rows.
    """

    name: str
    dtype: str | None = None
    optional: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchFile:
    """One file's list, checked and with names.

    coords: [B, 4] fractions from 0 to 1. flips: bool [B]. cutouts: [B, 7] or None.
    labels: float16 or float32 [B, C], or the top-k values [B, k] where `classes` is given.
    classes: int32 [B, k] or None. images: int32 [B] or None.
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
    """Read and check one file of a layout with these items."""
    return parse_batch(read_torch_file(path), items, where=path)


def parse_batch(saved: object, items: Sequence[Item], *, where: Path) -> BatchFile:
    """Check and name what a file holds."""
    least = sum(not item.optional for item in items)
    if isinstance(saved, list) and len(saved) in (7, 8) and isinstance(saved[2], list):
        raise LabelFileError(
            "this batch was labelled with RandAugment",
            where=where,
            expected="views made by crop, flip, cut-out and mixing alone",
            got=f"{len(saved[2])} operations on every whole image before its crop",
            hint="a pool cannot express them, nor does the folder: LPQLD's program rounds their "
            "parameters to half precision after use; label again without --use_rand_aug",
        )
    if not isinstance(saved, list) or not least <= len(saved) <= len(items):
        got = f"a list of {len(saved)}" if isinstance(saved, list) else type(saved).__name__
        counts = f"{least} or {len(items)}" if least < len(items) else least
        raise LabelFileError("not a label batch", where=where, expected=f"a list of {counts} items", got=got)
    values: dict[str, Any] = {}
    for place, (item, value) in enumerate(zip(items, saved, strict=False)):
        field = _Field(f"[{place}] {item.name}", value, values, where)
        values |= _READERS[item.name](field)
    partners, strength, box = (values.pop(name) for name in ("partners", "strength", "box"))
    if partners is not None:
        values["mix"] = Mix(partner=partners, strength=strength, box=box)
    return BatchFile(**values)


@dataclass(frozen=True)
class _Field:
    """An item to be read. known: what the items before it gave."""

    name: str
    value: Any
    known: dict[str, Any]
    where: Path

    def error(self, expected: object, got: object = None) -> LabelFileError:
        return LabelFileError(
            f"item {self.name} is wrong",
            where=self.where,
            expected=expected,
            got=_shown(self.value) if got is None else got,
            hint="this file is not a label batch of a known format",
        )

    @property
    def rows(self) -> int:
        return len(self.known["coords"])

    @property
    def mixed(self) -> bool:
        """Whether the batch was mixed, which its partners say."""
        return self.known["partners"] is not None

    def floats(self, rows: int | None, columns: int | None) -> Floats:
        item, wanted = self.value, f"float16 or float32 [{rows or 'B'}, {columns or 'C'}]"
        good = isinstance(item, np.ndarray) and item.dtype in (np.float16, np.float32) and item.ndim == 2
        if not good or len(item) == 0 or (rows or len(item), columns or item.shape[1]) != item.shape:
            raise self.error(wanted)
        return np.asarray(item)

    def integers(self, shape: tuple[int, ...]) -> IntArray:
        item = self.value
        if not isinstance(item, np.ndarray) or item.dtype.kind not in "iu" or item.shape != shape:
            raise self.error(f"integers {list(shape)}")
        if item.size and not 0 <= int(item.min()) <= int(item.max()) < 2**31:
            raise self.error("integers >= 0", f"{item.min()} to {item.max()}")
        return item.astype(np.int32)


def _shown(item: object) -> str:
    return f"{item.dtype} {list(item.shape)}" if isinstance(item, np.ndarray) else type(item).__name__


def _coords(field: _Field) -> dict[str, Any]:
    coords = field.floats(None, 4)
    if not ((coords >= 0) & (coords <= 1)).all():
        raise field.error("fractions from 0 to 1", "something else")
    return {"coords": coords}


def _flips(field: _Field) -> dict[str, Any]:
    """Read flips, or the cut-outs that stand in their place."""
    item, rows = field.value, field.rows
    if isinstance(item, np.ndarray) and item.dtype == np.bool_ and item.shape == (rows,):
        return {"flips": item}
    if isinstance(item, np.ndarray) and item.dtype.kind == "f" and item.shape == (rows, CUTOUT_COLUMNS):
        if not np.isfinite(item).all():
            raise field.error("finite cut-outs", "something else")
        return {"flips": np.zeros(rows, np.bool_), "cutouts": item}
    raise field.error(f"flips bool [{rows}] or cut-outs float [{rows}, {CUTOUT_COLUMNS}]")


def _partners(field: _Field) -> dict[str, Any]:
    if field.value is None:
        return {"partners": None}
    partners = field.integers((field.rows,))
    if int(partners.max()) >= field.rows:
        raise field.error(f"slots below {field.rows}", int(partners.max()))
    return {"partners": partners}


def _strength(field: _Field) -> dict[str, Any]:
    strength = field.value
    if not field.mixed:
        if strength is not None:
            raise field.error("None, as there are no partners")
        return {"strength": None}
    if not isinstance(strength, float | np.floating):
        raise field.error("a number from 0 to 1")
    if not 0.0 <= float(strength) <= 1.0:
        raise field.error("a number from 0 to 1", repr(strength))
    return {"strength": float(strength)}


def _box(field: _Field) -> dict[str, Any]:
    item = field.value
    expected = f"[r1, c1, r2, c2] with 0 <= r1 <= r2 and 0 <= c1 <= c2 <= {MAX_SIDE}"
    if item is None:
        return {"box": None}
    if not field.mixed:
        raise field.error("None, as there are no partners")
    if not isinstance(item, list | tuple) or len(item) != 4:
        raise field.error(expected)
    sides = [_whole_number(side) for side in item]
    if None in sides:
        raise field.error(expected, [type(side).__name__ for side in item])
    box = Box(*(side or 0 for side in sides))
    if not (0 <= box.top <= box.bottom <= MAX_SIDE and 0 <= box.left <= box.right <= MAX_SIDE):
        raise field.error(
            expected, [str(side) if abs(side) < 2**63 else "a number of many digits" for side in box]
        )
    return {"box": box}


def _whole_number(item: object) -> int | None:
    """Return what a program may have saved as a number: a Python or NumPy integer, or a tensor of one."""
    if isinstance(item, int) and not isinstance(item, bool):
        return item
    if isinstance(item, np.ndarray | np.integer) and item.dtype.kind in "iu" and item.size == 1:
        return int(item.item())
    return None


_READERS: dict[str, Callable[[_Field], dict[str, Any]]] = {
    "coords": _coords,
    "flips": _flips,
    "partners": _partners,
    "strength": _strength,
    "box": _box,
    "labels": lambda field: {"labels": field.floats(field.rows, None)},
    "images": lambda field: {"images": field.integers((field.rows,))},
    "classes": lambda field: {"classes": field.integers(field.known["labels"].shape)},
}
"""Name of an item -> what it says about a `BatchFile`."""


def batch_items(batch: BatchFile, items: Sequence[Item]) -> list[Any]:
    """Return the list that a program saves for a batch, in its own types."""
    mix = batch.mix
    values: dict[str, Any] = {
        "coords": batch.coords,
        "flips": batch.flips if batch.cutouts is None else batch.cutouts,
        "partners": None if mix is None else mix.partner,
        "strength": None if mix is None else mix.strength,
        "box": None if mix is None or mix.box is None else list(mix.box),
        "labels": batch.labels,
        "images": batch.images,
        "classes": batch.classes,
    }
    return [
        _written(values[item.name], item.dtype)
        for item in items
        if not item.optional or values[item.name] is not None
    ]


def _written(value: Any, dtype: str | None) -> Any:
    if value is None or dtype is None:
        return value
    if isinstance(value, list):
        return [np.array(part, dtype) for part in value]
    return value.astype(dtype)
