"""In-memory label batches: views of images, and the teacher's labels for them.

A *view* is an augmented part of one image. A *label batch* holds the views of one teacher call, with one row
of labels per view. Views are mixed within a batch. Records are validated when they are created.

Rendering steps: shuffle patches -> crop -> resize to the output size -> flip -> cut out -> mix -> normalise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import InvalidBatchError
from lpld_labels.format.limits import MAX_INDEX
from lpld_labels.format.schema import LabelKind, MixKind

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
LabelArray = npt.NDArray[np.floating[Any]]  # Labels of a batch: float16 or float32 [B, C].

LABEL_DTYPES = (np.dtype(np.float16), np.dtype(np.float32))


class BatchKey(NamedTuple):
    """Identifies a label batch: its epoch and its number within that epoch."""

    epoch: int
    batch: int

    def __str__(self) -> str:
        return f"epoch {self.epoch} batch {self.batch}"


class Box(NamedTuple):
    """Half-open pixel rectangle in the output image: rows [top, bottom), columns [left, right)."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def area(self) -> int:
        return (self.bottom - self.top) * (self.right - self.left)


@dataclass(frozen=True, kw_only=True, eq=False)
class Mix:
    """How each view of a batch is mixed with its partner, which is a view of the same batch.

    partner: int32 [B], slot of each view's partner.
    strength: weight of the view itself, as drawn from Beta. Clipping of the box does not change it.
    box: CutMix rectangle that shows the partner, or None for MixUp.
    """

    partner: IntArray
    strength: float
    box: Box | None = None

    @property
    def kind(self) -> MixKind:
        return "mixup" if self.box is None else "cutmix"


@dataclass(frozen=True, kw_only=True, eq=False)
class CutOut:
    """A rectangle painted over each view after resize and flip.

    boxes: int32 [B, 4], half-open boxes (top, left, bottom, right) within the output image.
    fill: uint8 [B, 3] as (red, green, blue).
    """

    boxes: IntArray
    fill: npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewBatch:
    """The views of a label batch, without the labels.

    key: epoch and batch number, both >= 0.
    images: int32 [B], indices into the pool's image table.
    crops: int32 [B, 4] as (top, left, height, width) in source pixels.
    flips: bool [B], whether each view is mirrored left to right after crop and resize.
    mix, cutout: None if not used.
    patch_order: uint8 [B, n*n], or None without patch shuffling (RDED). In slot s, tile t of the shuffled
        image is tile patch_order[s, t] of the stored image. Tiles are numbered row by row.
    """

    key: BatchKey
    images: IntArray
    crops: IntArray
    flips: BoolArray
    mix: Mix | None = None
    cutout: CutOut | None = None
    patch_order: npt.NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        key = _checked_key(self.key)
        images = _integers("images", self.images, None, key)
        if images.ndim != 1 or len(images) == 0:
            raise _bad(key, "images", "shape [B] with B >= 1", list(images.shape))
        rows = len(images)
        crops = _integers("crops", self.crops, (rows, 4), key)
        _require(key, "crops", "height and width >= 1", crops, crops[:, 2:] >= 1)
        _require_array("flips", self.flips, np.bool_, (rows,), key)
        # Store the checked values; setattr does not work in a frozen dataclass.
        vars(self).update(
            key=key,
            images=images,
            crops=crops,
            mix=self.mix and _checked_mix(self.mix, rows, key),
            cutout=self.cutout and _checked_cutout(self.cutout, rows, key),
        )
        if self.patch_order is not None:
            _check_patches(self.patch_order, rows, key)

    @property
    def rows(self) -> int:
        return len(self.images)


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelBatch(ViewBatch):
    """Views with finite labels: float16/float32 [B, C], logits or probabilities (PoolHeader.label_kind)."""

    labels: LabelArray

    def __post_init__(self) -> None:
        super().__post_init__()
        check_labels(self.labels, self.key, self.images)

    @property
    def classes(self) -> int:
        return int(self.labels.shape[1])


def check_labels(labels: LabelArray, key: BatchKey, images: IntArray, kind: LabelKind = "logits") -> None:
    """Refuse labels of the wrong dtype, shape or range, and NaN or Inf; the error names the image."""
    if not isinstance(labels, np.ndarray) or labels.dtype not in LABEL_DTYPES:
        raise _bad(key, "labels", "float16 or float32", getattr(labels, "dtype", type(labels).__name__))
    if labels.ndim != 2 or labels.shape[0] != len(images) or labels.shape[1] < 2:
        raise _bad(key, "labels", f"shape [{len(images)}, C] with C >= 2", list(labels.shape))
    finite = _finite(labels)
    if not finite.all():
        slot, column = (int(i) for i in np.argwhere(~finite)[0])
        raise InvalidBatchError(
            f"label of image {int(images[slot])} (slot {slot}, class {column}) is not finite",
            where=key,
            expected="finite values",
            got=float(labels[slot, column]),
            hint="check the teacher's output (fp16 overflow, AMP) before writing",
        )
    if kind == "probabilities" and (labels < 0).any():
        raise _bad(key, "labels", "probabilities of at least 0", float(labels.min()))


def _finite(labels: LabelArray) -> BoolArray:
    """Like np.isfinite, but ten times as fast for float16: it compares the exponent bits."""
    if labels.dtype == np.float16:
        bits = np.ascontiguousarray(labels).view(np.uint16)
        return np.asarray((bits & 0x7C00) != 0x7C00)
    return np.isfinite(labels)


def _bad(key: object, field: str, expected: object, got: object) -> InvalidBatchError:
    return InvalidBatchError(f"field '{field}' is wrong", where=key, expected=expected, got=got)


def _require(key: BatchKey, field: str, expected: str, values: npt.NDArray[Any], good: BoolArray) -> None:
    if not good.all():
        slot = int(np.argwhere(~good)[0][0])
        raise _bad(key, field, expected, f"{values[slot].tolist()} at slot {slot}")


def _checked_key(key: Sequence[int]) -> BatchKey:
    epoch, batch = key
    for field, value in (("epoch", epoch), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise _bad(f"key {tuple(key)}", field, "an integer", type(value).__name__)
        if not 0 <= value <= MAX_INDEX:
            raise _bad(f"key {tuple(key)}", field, f"0 to {MAX_INDEX}", value)
    return BatchKey(int(epoch), int(batch))


def _integers(field: str, array: object, shape: tuple[int, ...] | None, key: BatchKey) -> IntArray:
    """Return an array as int32 after checking its shape and range (0 to MAX_INDEX). shape: None for any."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
        raise _bad(key, field, "an integer array", getattr(array, "dtype", type(array).__name__))
    if shape is not None and array.shape != shape:
        raise _bad(key, field, f"shape {list(shape)}", list(array.shape))
    if array.size and (int(array.min()) < 0 or int(array.max()) > MAX_INDEX):
        raise _bad(key, field, f"values from 0 to {MAX_INDEX}", f"{array.min()} to {array.max()}")
    return array.astype(np.int32, copy=False)


def _require_array(
    field: str, array: object, dtype: npt.DTypeLike, shape: tuple[int, ...], key: BatchKey
) -> None:
    expected = f"{np.dtype(dtype)} of shape {list(shape)}"
    if not isinstance(array, np.ndarray):
        raise _bad(key, field, expected, type(array).__name__)
    if array.dtype != dtype or array.shape != shape:
        raise _bad(key, field, expected, f"{array.dtype} of shape {list(array.shape)}")


def _checked_mix(mix: Mix, rows: int, key: BatchKey) -> Mix:
    partner = _integers("mix.partner", mix.partner, (rows,), key)
    _require(key, "mix.partner", f"slots below {rows}", partner, partner < rows)
    strength = float(mix.strength) + 0.0  # Turns -0.0 into 0.0, so that equal batches have equal digests.
    if not 0.0 <= strength <= 1.0:
        raise _bad(key, "mix.strength", "0 to 1", strength)
    box = None
    if mix.box is not None:
        box = Box(*map(int, mix.box))
        if not (0 <= box.top <= box.bottom and 0 <= box.left <= box.right):
            raise _bad(key, "mix.box", "0 <= top <= bottom and 0 <= left <= right", tuple(box))
    return Mix(partner=partner, strength=strength, box=box)


def _checked_cutout(cutout: CutOut, rows: int, key: BatchKey) -> CutOut:
    boxes = _integers("cutout.boxes", cutout.boxes, (rows, 4), key)
    _require(key, "cutout.boxes", "top <= bottom, left <= right", boxes, boxes[:, :2] <= boxes[:, 2:])
    _require_array("cutout.fill", cutout.fill, np.uint8, (rows, 3), key)
    return CutOut(boxes=boxes, fill=cutout.fill)


def _check_patches(order: npt.NDArray[np.uint8], rows: int, key: BatchKey) -> None:
    if not isinstance(order, np.ndarray) or order.dtype != np.uint8 or order.ndim != 2:
        raise _bad(key, "patch_order", "uint8 [B, n*n]", getattr(order, "dtype", type(order).__name__))
    tiles = order.shape[1]
    side = int(np.sqrt(tiles))
    if order.shape[0] != rows or side * side != tiles or not 1 <= side <= 15:
        raise _bad(key, "patch_order", f"shape [{rows}, n*n] with n from 1 to 15", list(order.shape))
    whole = (np.sort(order, axis=1) == np.arange(tiles)).all(axis=1)
    _require(key, "patch_order", f"a permutation of 0 to {tiles - 1} per row", order, whole)
