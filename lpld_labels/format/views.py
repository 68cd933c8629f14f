"""Convert view batches to Parquet rows and back, column by column, and check the bounds of views."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.format import arrow
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation, PoolHeader
from lpld_labels.format.records import BatchKey, Box, CutOut, LabelArray, LabelBatch, Mix, ViewBatch
from lpld_labels.format.schema import VIEW_SCHEMA, Views

T = TypeVar("T")
CROP = ("crop_top", "crop_left", "crop_height", "crop_width")
MIX_BOX = ("mix_top", "mix_left", "mix_bottom", "mix_right")
CUTOUT_BOX = ("cutout_top", "cutout_left", "cutout_bottom", "cutout_right")
CUTOUT_FILL = ("cutout_red", "cutout_green", "cutout_blue")


def to_table(batches: Sequence[ViewBatch]) -> pa.Table:
    """Return one table with the rows of all batches, in the given order."""
    rows = [batch.rows for batch in batches]
    crops = np.concatenate([batch.crops for batch in batches])
    mixes = [batch.mix for batch in batches]
    boxes = [None if mix is None else mix.box for mix in mixes]
    strengths = [None if mix is None else np.full((1, 1), mix.strength) for mix in mixes]
    cutouts = [batch.cutout for batch in batches]
    columns: dict[str, npt.NDArray[Any]] = {
        "epoch": np.repeat([batch.key.epoch for batch in batches], rows),
        "batch": np.repeat([batch.key.batch for batch in batches], rows),
        "slot": np.concatenate([np.arange(count) for count in rows]),
        "image": np.concatenate([batch.images for batch in batches]),
        "flip": np.concatenate([batch.flips for batch in batches]),
        **{name: crops[:, i] for i, name in enumerate(CROP)},
    }
    arrays = {
        **{name: _array(name, values) for name, values in columns.items()},
        **_nullable(("mix_slot",), [None if mix is None else mix.partner[:, None] for mix in mixes], rows),
        **_nullable(("mix_strength",), strengths, rows),
        **_nullable(MIX_BOX, [None if box is None else np.array([box]) for box in boxes], rows),
        **_nullable(CUTOUT_BOX, [None if cutout is None else cutout.boxes for cutout in cutouts], rows),
        **_nullable(CUTOUT_FILL, [None if cutout is None else cutout.fill for cutout in cutouts], rows),
        "patch_order": _patch_orders([batch.patch_order for batch in batches], rows),
    }
    return pa.Table.from_arrays([arrays[name] for name in VIEW_SCHEMA.names], schema=VIEW_SCHEMA)


def _array(name: str, values: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None = None) -> arrow.Array:
    return cast("arrow.Array", pa.array(values, VIEW_SCHEMA.field(name).type, mask=null))


def _nullable(
    names: tuple[str, ...], parts: Sequence[npt.NDArray[Any] | None], rows: Sequence[int]
) -> dict[str, arrow.Array]:
    """Return n columns. parts: one array [B, n] per batch, or [1, n] to repeat its row, or None for nulls."""
    given = [(part, count) for part, count in zip(parts, rows, strict=True) if part is not None]
    if not given:
        return {name: _nulls(name, sum(rows)) for name in names}
    there = [np.broadcast_to(part, (count, len(names))) for part, count in given]
    null = np.repeat([part is None for part in parts], rows)
    values = np.zeros((len(null), len(names)), there[0].dtype)
    values[~null] = np.concatenate(there)
    return {name: _array(name, values[:, i], null) for i, name in enumerate(names)}


def _patch_orders(orders: Sequence[npt.NDArray[np.uint8] | None], rows: Sequence[int]) -> arrow.Array:
    parts = []
    for order, count in zip(orders, rows, strict=True):
        if order is None:
            parts.append(_nulls("patch_order", count))
        else:
            offsets: Any = np.arange(count + 1, dtype=np.int32) * order.shape[1]
            kind = VIEW_SCHEMA.field("patch_order").type
            parts.append(pa.ListArray.from_arrays(offsets, pa.array(order.ravel()), type=kind))
    return pa.concat_arrays(parts)


def _nulls(name: str, rows: int) -> arrow.Array:
    return cast("arrow.Array", pa.nulls(rows, VIEW_SCHEMA.field(name).type))


class DecodedViews:
    """Views of several batches as NumPy columns, from which `batch` slices single batches."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.rows = table.num_rows
        self.nbytes = table.nbytes
        self.images = table["image"].to_numpy()
        self.crops = np.stack([table[name].to_numpy() for name in CROP], axis=1)
        self.flips = table["flip"].to_numpy()
        self._converted: dict[tuple[str, ...], npt.NDArray[Any]] = {}
        self._mixed, self._boxed, self._cut_out, self._shuffled = (
            table[name].is_valid().to_numpy() for name in ("mix_slot", "mix_top", "cutout_top", "patch_order")
        )

    def batch(self, key: BatchKey, part: slice) -> ViewBatch:
        """Return the batch stored in rows `part`. Its arrays are unvalidated slices of the columns."""
        first = part.start
        fields = {
            "key": key,
            "images": self.images[part],
            "crops": self.crops[part],
            "flips": self.flips[part],
            "mix": self._mix_of(part) if self._mixed[first] else None,
            "cutout": self._cutout_of(part) if self._cut_out[first] else None,
            "patch_order": self._patches_of(part) if self._shuffled[first] else None,
        }
        return _trusted(ViewBatch, fields)

    def _mix_of(self, part: slice) -> Mix:
        box = Box(*self._nullable(*MIX_BOX)[part.start].tolist()) if self._boxed[part.start] else None
        strength = float(self._nullable("mix_strength")[part.start, 0])
        return Mix(partner=self._nullable("mix_slot")[part, 0], strength=strength, box=box)

    def _cutout_of(self, part: slice) -> CutOut:
        return CutOut(boxes=self._nullable(*CUTOUT_BOX)[part], fill=self._nullable(*CUTOUT_FILL)[part])

    def _patches_of(self, part: slice) -> npt.NDArray[np.uint8]:
        rows = self._table["patch_order"].slice(part.start, part.stop - part.start)
        return np.asarray(arrow.flattened(rows), dtype=np.uint8).reshape(len(rows), -1)

    def _nullable(self, *names: str) -> npt.NDArray[Any]:
        """Return the n columns as one array [rows, n], with 0 for null. The array is cached."""
        if names not in self._converted:
            columns = [arrow.filled(self._table[name], 0) for name in names]
            self._converted[names] = np.stack(columns, axis=1)
        return self._converted[names]


def owned(views: ViewBatch) -> ViewBatch:
    """Return a copy of the views that shares no memory, without validating them again."""
    mix, cutout, patches = views.mix, views.cutout, views.patch_order
    copies = {
        "images": views.images.copy(),
        "crops": views.crops.copy(),
        "flips": views.flips.copy(),
        "mix": mix and replace(mix, partner=mix.partner.copy()),
        "cutout": cutout and replace(cutout, boxes=cutout.boxes.copy(), fill=cutout.fill.copy()),
        "patch_order": None if patches is None else patches.copy(),
    }
    return _trusted(ViewBatch, {**vars(views), **copies})


def labelled(views: ViewBatch, labels: LabelArray) -> LabelBatch:
    """Return valid views and labels as one record, without validating them again."""
    return _trusted(LabelBatch, {**vars(views), "labels": labels})


def _trusted(kind: type[T], values: dict[str, Any]) -> T:
    record = object.__new__(kind)
    record.__dict__.update(values)
    return record


class ViewConstraints(NamedTuple):
    """The values that views are validated against. Views stay valid in other pools with equal values."""

    augmentation: Augmentation
    sizes: bytes
    seed: int | None
    batch_size: int
    views: Views


def view_constraints(header: PoolHeader, images: ImageTable, views: Views) -> ViewConstraints:
    """Return the constraints on a pool's views."""
    sizes = hashlib.sha256(images.heights.tobytes() + images.widths.tobytes()).digest()
    return ViewConstraints(header.augmentation, sizes, header.seed, header.batch_size, views)
