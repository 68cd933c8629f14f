"""`topk`: the k largest labels of each row, and one level for all other classes.

A batch is stored in one row. Its entries are in class order, so that class indices become small gaps. Gaps
and values are compressed byte planes (packing.py). Classes without entry decode to the row's *tail level*:

logits         log of the mean of exp(logit) over these classes, which keeps their total probability at
               temperature 1;
probabilities  the mean probability of these classes.

Imported labels may have no tail. The other classes then get probability 0. Fast Knowledge Distillation calls
this marginal re-normalisation. A tail corresponds to what it calls marginal smoothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs.affine import RowGrid
from lpld_labels.codecs.base import Codec, EncodedLabels, FloatArray, Payload, raw_bytes
from lpld_labels.codecs.floats import converted
from lpld_labels.codecs.packing import index_dtype, pack_planes, pack_sets, unpack_planes, unpack_sets
from lpld_labels.errors import InvalidArgumentError, InvalidBatchError, ManifestError, PoolCorruptError
from lpld_labels.format.digests import CanonicalBytes
from lpld_labels.format.limits import MAX_CLASSES
from lpld_labels.format.records import BoolArray, IntArray, LabelArray
from lpld_labels.format.schema import Column, LabelKind

ValueBits = Literal[8, 16, 32]
# Level of the other classes without a tail. Softmax maps it to 0 up to T = 100; float16 stores it exactly.
NO_MASS = {"logits": -10_000.0, "probabilities": 0.0}


class SparseLabels(NamedTuple):
    """Values float16/float32 [B, k], distinct class indices int32 [B, k], and tail levels [B] or None."""

    values: LabelArray
    indices: IntArray
    tail: FloatArray | None


class _Entries(NamedTuple):
    """Entries in class order. rank: original order, int64 [B, k]; None if values were descending."""

    indices: IntArray
    values: LabelArray
    grid: RowGrid | None
    tail: FloatArray | None
    rank: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, kw_only=True)
class _Settings:
    k: Annotated[int, msgspec.Meta(ge=1, le=MAX_CLASSES)]
    value_bits: ValueBits
    label_kind: LabelKind


class TopKCodec(Codec):
    """The k largest labels per row with `value_bits` bits each."""

    name = "topk"
    specs = ("topk:K[:BITS]",)
    settings = _Settings

    def __init__(self, *, k: int, value_bits: int = 16, label_kind: str = "logits") -> None:
        if not 1 <= k <= MAX_CLASSES:
            raise InvalidArgumentError(
                "k of codec 'topk' is out of range", expected=f"k from 1 to {MAX_CLASSES}", got=k
            )
        if value_bits not in get_args(ValueBits):
            raise InvalidArgumentError(
                "unsupported top-k value size", expected=f"one of {get_args(ValueBits)} bits", got=value_bits
            )
        self.k = k
        self.value_bits = value_bits
        self.label_kind = label_kind

    @classmethod
    def parse(cls, arguments: Sequence[str], *, label_kind: str) -> Codec | None:
        if not 1 <= len(arguments) <= 2 or not all(number.isdecimal() for number in arguments):
            return None
        k, bits = [*map(int, arguments), 16][:2]
        return cls(k=k, value_bits=bits, label_kind=label_kind)

    @property
    def spec(self) -> str:
        return f"{self.name}:{self.k}:{self.value_bits}"

    @property
    def top_k(self) -> TopKCodec:
        return self

    @property
    def value_dtype(self) -> np.dtype[Any]:
        return np.dtype("<f2" if self.value_bits == 16 else "<f4")

    def identity(self) -> bytes:
        return struct.pack("<IB", self.k, self.value_bits)

    def require_fit(self, *, classes: int) -> None:
        if self.k > classes:
            raise ManifestError("field 'codec.parameters.k' is wrong", expected=f"1 to {classes}", got=self.k)

    def payload_columns(self, classes: int) -> tuple[Column, ...]:
        grid = ("scale", "offset") if self.value_bits == 8 else ()
        return tuple(
            Column(name=name, type=pa.binary(), component="labels", nullable=name in ("tail", "order"))
            for name in ("gaps", "values", *grid, "tail", "order")
        )

    def encode(self, labels: LabelArray) -> EncodedLabels:
        classes = labels.shape[1]
        self._check_k(classes)
        labels = converted(labels, np.float32)
        kept = largest(labels, self.k)
        indices = members(kept, self.k)
        values = labels[kept].reshape(-1, self.k)
        tail = tail_level(labels, kept, self.label_kind) if self.k < classes else None
        return self._packed(self._stored(values), indices, tail, classes)

    def encode_sparse(
        self, values: LabelArray, indices: IntArray, tail: FloatArray | None, *, classes: int
    ) -> EncodedLabels:
        """Encode imported entries and keep their order. With 16 or 32 bits, values are kept bit for bit."""
        self._check_k(classes)
        shape = (len(values), self.k)
        if values.shape != shape or indices.shape != shape:
            got = f"{list(values.shape)} and {list(indices.shape)}"
            raise InvalidBatchError("top-k arrays have the wrong shape", expected=list(shape), got=got)
        if self.value_bits != 8 and values.dtype != self.value_dtype:
            raise InvalidBatchError(
                "top-k values have the wrong dtype", expected=self.value_dtype, got=values.dtype
            )
        if not np.isfinite(values).all() or (tail is not None and not np.isfinite(tail).all()):
            raise InvalidBatchError("top-k values are not finite", expected="finite values")
        by_class = np.argsort(indices, axis=1, kind="stable")
        ordered = np.take_along_axis(indices, by_class, axis=1).astype(np.int32, copy=False)
        if ordered[:, 0].min() < 0 or ordered[:, -1].max() >= classes:
            raise InvalidBatchError(
                "top-k index out of range",
                expected=f"0 to {classes - 1}",
                got=f"{ordered[:, 0].min()} to {ordered[:, -1].max()}",
            )
        if (np.diff(ordered, axis=1) == 0).any():
            raise InvalidBatchError("top-k row contains a class twice", expected="distinct indices")
        sorted_values = np.take_along_axis(values, by_class, axis=1)
        encoded = self._packed(sorted_values, ordered, tail, classes)
        return self._with_order(encoded, by_class, classes)

    def _stored(self, values: LabelArray) -> LabelArray:
        if self.value_bits == 8:
            return values
        with np.errstate(over="ignore"):
            stored = values.astype(self.value_dtype)
        if not np.isfinite(stored).all():
            raise InvalidBatchError(
                "label too large for 16-bit top-k values",
                expected=f"at most {np.finfo(np.float16).max}",
                got=float(np.abs(values).max()),
                hint="use 32-bit values",
            )
        return stored

    def _check_k(self, classes: int) -> None:
        if self.k > classes:
            problem = "codec 'topk' keeps more entries than there are classes"
            raise InvalidArgumentError(problem, expected=f"k <= {classes}", got=self.k)

    def _packed(
        self, values: LabelArray, indices: IntArray, tail: FloatArray | None, classes: int
    ) -> EncodedLabels:
        grid = RowGrid.fit(values, bits=8, dtype=np.float16) if self.value_bits == 8 else None
        columns = {"gaps": pack_sets(indices, classes)}
        if grid is None:
            columns["values"] = pack_planes(values)
        else:
            parts = {"values": grid.codes, "scale": grid.scale, "offset": grid.offset}
            columns |= {name: pack_planes(part) for name, part in parts.items()}
        payload = {name: pa.array([blob], pa.binary()) for name, blob in columns.items()}
        payload["tail"] = pa.array([None if tail is None else pack_planes(tail)], pa.binary())
        payload["order"] = pa.array([None], pa.binary())
        canonical = _canonical(_Entries(indices, values, grid, tail))
        return EncodedLabels(payload=payload, canonical=canonical)

    def _with_order(
        self, encoded: EncodedLabels, by_class: npt.NDArray[np.intp], classes: int
    ) -> EncodedLabels:
        """Add the `order` column if sorting by value does not restore the imported order."""
        entries = self._entries(encoded.payload, len(by_class), classes)
        place = np.argsort(by_class, axis=1)  # source position -> position in class order
        descending = _descending(entries)
        if (place == descending).all():
            return encoded
        rank = np.argsort(descending, axis=1)  # the inverse permutation
        dtype = index_dtype(self.k)
        moved = (np.take_along_axis(rank, place, axis=1) - np.arange(self.k)) % (1 << 8 * dtype.itemsize)
        order = pa.array([pack_planes(moved.astype(dtype))], pa.binary())
        return EncodedLabels(payload={**encoded.payload, "order": order}, canonical=encoded.canonical)

    def decode(
        self, payload: Payload, *, rows: int, classes: int, dtype: npt.DTypeLike = np.float32
    ) -> LabelArray:
        entries = self._entries(payload, rows, classes)
        labels = np.empty((rows, classes), np.float32)
        labels[:] = NO_MASS[self.label_kind] if entries.tail is None else entries.tail[:, None]
        np.put_along_axis(labels, entries.indices, converted(entries.values, np.float32), axis=1)
        return converted(labels, dtype)

    def sparse(self, payload: Payload, *, rows: int, classes: int) -> SparseLabels:
        """Return the entries in imported order. Entries from `encode` are in descending order of value."""
        entries = self._entries(payload, rows, classes)
        place = _descending(entries)
        if entries.rank is not None:
            place = np.take_along_axis(place, entries.rank, axis=1)
        return SparseLabels(
            np.take_along_axis(entries.values, place, axis=1),
            np.take_along_axis(entries.indices, place, axis=1),
            entries.tail,
        )

    def canonical(self, payload: Payload, *, rows: int, classes: int) -> CanonicalBytes:
        return _canonical(self._entries(payload, rows, classes))

    def _entries(self, payload: Payload, rows: int, classes: int) -> _Entries:
        shape = (rows, self.k)

        def unpacked(name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
            return unpack_planes(payload[name][0].as_buffer(), dtype, shape, where=name)

        indices = unpack_sets(payload["gaps"][0].as_buffer(), shape, classes, where="gaps")
        tail = None
        if payload["tail"][0].is_valid:
            tail = unpacked("tail", "<f4", (rows,))
            self._check("tail", tail)
        rank = self._rank(payload, shape) if payload["order"][0].is_valid else None
        if self.value_bits == 8:
            grid = RowGrid(
                codes=unpacked("values", np.uint8, shape),
                scale=unpacked("scale", "<f2", (rows,)),
                offset=unpacked("offset", "<f2", (rows,)),
            )
            grid.check(bits=8, label_kind=self.label_kind)
            return _Entries(indices, grid.values(), grid, tail, rank)
        values = unpacked("values", self.value_dtype, shape)
        self._check("values", values)
        return _Entries(indices, values, None, tail, rank)

    def _rank(self, payload: Payload, shape: tuple[int, int]) -> npt.NDArray[np.int64]:
        """Return the position of each imported entry in descending order of value: int64 [B, k]."""
        dtype = index_dtype(self.k)
        moved = unpack_planes(payload["order"][0].as_buffer(), dtype, shape, where="order").astype(np.int64)
        rank: npt.NDArray[np.int64] = (moved + np.arange(self.k)) % (1 << 8 * dtype.itemsize)
        if (np.sort(rank, axis=1) != np.arange(self.k)).any():
            raise PoolCorruptError("column 'order' is not a permutation", where="order")
        return rank

    def _check(self, name: str, values: LabelArray) -> None:
        if not np.isfinite(values).all():
            raise PoolCorruptError("a label is not finite", where=name, expected="finite values")
        if self.label_kind == "probabilities" and (values < 0).any():
            raise PoolCorruptError("a probability is negative", where=name, got=float(values.min()))


def largest(labels: LabelArray, k: int) -> BoolArray:
    """Return a mask [B, C] of the k largest values per row. Of equal values, lower classes win."""
    classes = labels.shape[1]
    threshold = np.partition(labels, classes - k, axis=1)[:, classes - k, None]
    above = labels > threshold
    ties = labels == threshold
    wanted = k - above.sum(axis=1, keepdims=True)
    return np.asarray(above | (ties & (np.cumsum(ties, axis=1) <= wanted)))


def members(mask: BoolArray, k: int) -> IntArray:
    """Return the classes where a mask [B, C] is True, k per row: int32 [B, k], ascending."""
    return np.nonzero(mask)[1].reshape(len(mask), k).astype(np.int32)


def tail_level(labels: LabelArray, kept: BoolArray, label_kind: str) -> FloatArray:
    """Return the tail levels: float32 [B], rounded to float16 if in range, or 0 if all classes are kept."""
    if kept.all():
        return np.zeros(len(labels), np.float32)
    rest = converted(labels[~kept].reshape(len(labels), -1), np.float32).astype(np.float64)
    if label_kind == "logits":
        top = rest.max(axis=1, keepdims=True)
        level = top[:, 0] + np.log(np.exp(rest - top).mean(axis=1))
    else:
        level = rest.mean(axis=1)
    with np.errstate(over="ignore"):
        half = level.astype(np.float16)
    return np.asarray(np.where(np.isfinite(half), half, level), np.float32)


def _descending(entries: _Entries) -> npt.NDArray[np.intp]:
    """Return the positions of entries in descending order of value, then ascending order of class."""
    return np.argsort(-entries.values, axis=1, kind="stable")


def _canonical(entries: _Entries) -> CanonicalBytes:
    values = [raw_bytes(entries.values)] if entries.grid is None else entries.grid.canonical()
    tail = [] if entries.tail is None else [raw_bytes(entries.tail)]
    return [raw_bytes(entries.indices), *values, *tail]


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptClasses:
    """Which labels of a sparse batch are stored.

    kept: bool [B, C], the k classes per row with a stored value. tail: whether a tail level is stored.
    dtype: dtype of the stored values. on_grid: whether values were quantised to a grid per row (8 bits).
    """

    kept: BoolArray
    tail: bool
    dtype: np.dtype[Any]
    on_grid: bool


def kept_classes(codec: Codec, payload: Payload, *, rows: int, classes: int) -> KeptClasses | None:
    """Return the classes with stored values, or None for codecs that store all classes."""
    top = codec.top_k
    if top is None:
        return None
    sparse = top.sparse(payload, rows=rows, classes=classes)
    kept = np.zeros((rows, classes), np.bool_)
    np.put_along_axis(kept, sparse.indices, True, axis=1)
    return KeptClasses(
        kept=kept, tail=sparse.tail is not None, dtype=top.value_dtype, on_grid=top.value_bits == 8
    )
