"""View batches as Parquet rows and back. The two halves mirror each other column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.format import arrow
from lpld_labels.format.records import BatchKey, Box, CutOut, LabelArray, LabelBatch, Mix, ViewBatch
from lpld_labels.format.schema import VIEW_SCHEMA

T = TypeVar("T")
CROP = ("crop_top", "crop_left", "crop_height", "crop_width")
MIX_BOX = ("mix_top", "mix_left", "mix_bottom", "mix_right")
CUTOUT_BOX = ("cutout_top", "cutout_left", "cutout_bottom", "cutout_right")
CUTOUT_FILL = ("cutout_red", "cutout_green", "cutout_blue")


def to_table(batches: Sequence[ViewBatch]) -> pa.Table:
    """Return the rows of some batches, in the order given."""
    chunks = [_columns(batch) for batch in batches]
    rows = [batch.rows for batch in batches]
    arrays = [_column(field, [columns.get(field.name) for columns in chunks], rows) for field in VIEW_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=VIEW_SCHEMA)


def _column(field: arrow.Field, parts: Sequence[npt.NDArray[Any] | None], rows: Sequence[int]) -> arrow.Array:
    """Return one column of several batches; None stands for a batch that is null in it."""
    given = [part for part in parts if part is not None]
    if not given:
        return cast("arrow.Array", pa.nulls(sum(rows), field.type))
    if len(given) == len(parts) and given[0].ndim == 1:
        # The usual case. One Arrow array per batch and column would take longer than writing them.
        return cast("arrow.Array", pa.array(np.concatenate(given), field.type))
    arrays: list[Any] = [
        pa.nulls(count, field.type) if part is None else _arrow(part, field)
        for part, count in zip(parts, rows, strict=True)
    ]
    return cast("arrow.Array", pa.concat_arrays(arrays))


def _arrow(values: npt.NDArray[Any], field: arrow.Field) -> arrow.Array:
    """Return a column [B], or lists of one length [B, n]."""
    if values.ndim == 1:
        return cast("arrow.Array", pa.array(np.ascontiguousarray(values), field.type))
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    lists: Any = pa.ListArray.from_arrays(cast("Any", offsets), pa.array(values.ravel()), type=field.type)
    return cast("arrow.Array", lists)


def _columns(batch: ViewBatch) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of one batch that are not null."""
    rows = batch.rows
    columns: dict[str, npt.NDArray[Any]] = {
        "epoch": np.full(rows, batch.key.epoch, np.int32),
        "batch": np.full(rows, batch.key.batch, np.int32),
        "slot": np.arange(rows, dtype=np.int32),
        "image": batch.images,
        "flip": batch.flips,
    }
    columns |= {name: batch.crops[:, i] for i, name in enumerate(CROP)}
    if batch.mix is not None:
        columns["mix_slot"] = batch.mix.partner
        columns["mix_strength"] = np.full(rows, batch.mix.strength, np.float64)
        if batch.mix.box is not None:
            columns |= {name: np.full(rows, batch.mix.box[i], np.int32) for i, name in enumerate(MIX_BOX)}
    if batch.cutout is not None:
        columns |= {name: batch.cutout.boxes[:, i] for i, name in enumerate(CUTOUT_BOX)}
        columns |= {name: batch.cutout.fill[:, i] for i, name in enumerate(CUTOUT_FILL)}
    if batch.patch_order is not None:
        columns["patch_order"] = batch.patch_order
    return columns


class DecodedViews:
    """Views of some whole batches as NumPy columns; slices of it become view batches."""

    def __init__(self, table: pa.Table) -> None:
        self.rows = table.num_rows
        self.nbytes = table.nbytes
        self.images = _integers(table, "image")
        self.crops = np.stack([_integers(table, name) for name in CROP], axis=1)
        self.flips = table["flip"].to_numpy()
        # Absent features stay None for the whole block, so that slicing them costs nothing.
        self._mix = _Optional(table, ("mix_slot", "mix_strength"))
        self._mix_box = _Optional(table, MIX_BOX)
        self._cutout = _Optional(table, CUTOUT_BOX + CUTOUT_FILL)
        self._patches = table["patch_order"] if table["patch_order"].null_count < self.rows else None

    def batch(self, key: BatchKey, part: slice) -> ViewBatch:
        """Return one batch. Its arrays are views into this block, already validated when written."""
        fields = {
            "key": key,
            "images": self.images[part],
            "crops": self.crops[part],
            "flips": self.flips[part],
            "mix": self._mix_of(part),
            "cutout": self._cutout_of(part),
            "patch_order": self._patches_of(part),
        }
        return _trusted(ViewBatch, fields)

    def _mix_of(self, part: slice) -> Mix | None:
        if not self._mix.present(part):
            return None
        partner = self._mix.columns["mix_slot"][part].astype(np.int32, copy=False)
        strength = float(self._mix.columns["mix_strength"][part.start])
        box = None
        if self._mix_box.present(part):
            box = Box(*[int(self._mix_box.columns[name][part.start]) for name in MIX_BOX])
        return Mix(partner=partner, strength=strength, box=box)

    def _cutout_of(self, part: slice) -> CutOut | None:
        if not self._cutout.present(part):
            return None
        columns = self._cutout.columns
        boxes = np.stack([columns[name][part] for name in CUTOUT_BOX], axis=1)
        fill = np.stack([columns[name][part] for name in CUTOUT_FILL], axis=1)
        return CutOut(boxes=boxes.astype(np.int32), fill=fill.astype(np.uint8))

    def _patches_of(self, part: slice) -> npt.NDArray[np.uint8] | None:
        if self._patches is None:
            return None
        rows = self._patches.slice(part.start, part.stop - part.start)
        if rows.null_count:
            return None
        return np.asarray(arrow.flattened(rows), dtype=np.uint8).reshape(len(rows), -1)


def owned(views: ViewBatch) -> ViewBatch:
    """Return the same views in memory of their own, without checking them again."""
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
    """Return views and labels that were checked before as one record, without checking them again."""
    return _trusted(LabelBatch, {**vars(views), "labels": labels})


def _trusted(kind: type[T], values: dict[str, Any]) -> T:
    """Make a frozen record without validating it again."""
    record = object.__new__(kind)
    record.__dict__.update(values)
    return record


class _Optional:
    """Nullable columns that are null together, per batch."""

    def __init__(self, table: pa.Table, names: tuple[str, ...]) -> None:
        first = table[names[0]]
        self.columns: dict[str, npt.NDArray[Any]] = {}
        self._valid: npt.NDArray[np.bool_] | None = None
        if first.null_count == len(first):
            return
        self._valid = first.is_valid().to_numpy()
        for name in names:
            self.columns[name] = arrow.filled(table[name], 0)

    def present(self, part: slice) -> bool:
        return self._valid is not None and bool(self._valid[part.start])


def _integers(table: pa.Table, name: str) -> npt.NDArray[np.int32]:
    return np.asarray(table[name].to_numpy(), dtype=np.int32)
