"""`klt`: labels as a few quantised coefficients in a basis fitted to the pool.

A row of C logits is encoded as

    labels = mean + step * integers @ basis,    then    labels[peak classes] += step / 8 * peak integers

Basis vector 0 is the constant 1/sqrt(C). Its coefficient encodes the row's mean, which matters to losses on
raw logits (MSE), but not to softmax. It costs about half a byte per row. The other vectors are the principal
directions of the pool's labels (Karhunen-Loeve transform, klt_fit.py). With them, one step for all
coefficients is optimal under squared error, and so under KL divergence at a high temperature. At a low
temperature, the largest labels dominate, and no common direction describes them. So the few largest labels
of each row (peaks) are corrected one by one, which preserves argmax.

A batch is stored as one row: one column per band of integers (packing.py), two for peaks. Probabilities are
encoded as log-probabilities and decoded through softmax. Coefficients too close to a rounding threshold for
single precision are computed again in double precision, so integers do not depend on the number of threads.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs.base import Codec, EncodedLabels, FloatArray, Parts, Payload, raw_bytes
from lpld_labels.codecs.floats import converted
from lpld_labels.codecs.label_semantics import as_finite_logits, softmax
from lpld_labels.codecs.packing import (
    Integers,
    pack_bands,
    pack_integers,
    pack_sets,
    unpack_bands,
    unpack_integers,
    unpack_sets,
)
from lpld_labels.codecs.topk import largest, members
from lpld_labels.errors import InvalidArgumentError, PoolCorruptError
from lpld_labels.format.digests import CanonicalBytes
from lpld_labels.format.limits import MAX_BASIS_VALUES, MAX_CLASSES
from lpld_labels.format.records import IntArray, LabelArray
from lpld_labels.format.schema import Column, LabelKind
from lpld_labels.format.strict_json import Count, convert, field_error

if TYPE_CHECKING:
    import torch

Doubles = npt.NDArray[np.float64]

# A coefficient becomes floor(|c| / step + ROUNDING). This small dead zone saves 4 % of the bytes at equal
# fidelity at T = 20 and costs 1 % at T = 1; decoding does not depend on it.
ROUNDING = 0.46
PEAK_SHARE = 8  # Peaks are corrected on a grid this many times finer than the step.
LEAD = 0.05  # Minimum lead of the largest label after decoding, in grid steps; above rounding errors.
DOUBT = 8e-6  # Upper estimate of the error of a float32 product of length C, relative to the row's norm.
MOST_DOUBT = 0.01  # Above this error (in steps), compute everything in double precision.

BASIS = "basis.pco"
SCALES = "scale.npy"
MEAN = "mean.npy"
_HEADER_START = 10
_NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<kind><f[24])', 'fortran_order': False, "
    rb"'shape': \((?P<count>[0-9]{1,12}),\), \} *\n",
    re.DOTALL,
)  # NumPy would parse the header as a Python literal, but the file is untrusted.


class Numbers(NamedTuple):
    """integers: coefficients [B, L + 1] in steps. peaks: corrections [B, m] of `classes` in 1/8 steps."""

    integers: npt.NDArray[Any]
    classes: IntArray
    peaks: npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class _Settings:
    step: float
    edges: tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_CLASSES + 1)], ...]
    peaks: Count
    label_kind: LabelKind
    target: dict[str, Any]


class KltCodec(Codec):
    """Transform-coded labels.

    step: quantisation step in logits. edges: band edges from 0 to L + 1 (see `band_edges`).
    peaks: how many of the largest labels per row are corrected. target: the goal of fitting.
    """

    name = "klt"
    fitted = True
    planned = True
    settings = _Settings

    def __init__(
        self,
        *,
        tables: KltTables,
        step: float,
        edges: Sequence[int],
        peaks: int,
        label_kind: str = "logits",
        target: Mapping[str, float] | None = None,
    ) -> None:
        self.step = float(step)
        self.edges = tuple(edges)
        self.peaks = peaks
        self.label_kind = label_kind
        self.target = dict(target or {})
        self._tables = tables
        self.mean: FloatArray = tables.mean.astype(np.float32)  # [C]
        self.basis: FloatArray = tables.basis()  # [L + 1, C]
        self._on_device: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "edges": list(self.edges)}

    def tables(self) -> dict[str, bytes]:
        return dict(self._tables.files)

    def identity(self) -> bytes:
        """Return what gives the integers a meaning: step, number of peaks, and a digest of basis and mean."""
        return struct.pack("<dI", self.step, self.peaks) + self._tables.digest()

    def require_fit(self, *, classes: int) -> None:
        if classes != self._tables.classes:
            raise PoolCorruptError(
                "codec table has the wrong number of classes",
                where="mean.npy",
                expected=classes,
                got=self._tables.classes,
            )

    def payload_columns(self, classes: int) -> tuple[Column, ...]:
        names = self._bands + (("peak_gaps", "peak_values") if self.peaks else ())
        return tuple(Column(name=name, type=pa.binary(), component="labels") for name in names)

    @cached_property
    def _bands(self) -> tuple[str, ...]:
        return tuple(f"band_{number}" for number in range(len(self.edges) - 1))

    def encode(self, labels: LabelArray) -> EncodedLabels:
        numbers = self.numbers(labels)
        blobs = dict(zip(self._bands, pack_bands(numbers.integers, self.edges), strict=True))
        if self.peaks:
            blobs["peak_gaps"] = pack_sets(numbers.classes, labels.shape[1])
            blobs["peak_values"] = pack_integers(numbers.peaks)
        payload = {name: pa.array([blob], pa.binary()) for name, blob in blobs.items()}
        return EncodedLabels(payload=payload, canonical=_canonical(numbers))

    def approximated(self, labels: LabelArray) -> FloatArray:
        """Return the labels that encoding and decoding would give, without packing them."""
        return self._rebuilt(self.numbers(labels))

    def numbers(self, labels: LabelArray) -> Numbers:
        logits = as_finite_logits(converted(labels, np.float32), self.label_kind)
        integers = self._integers(logits)
        if not self.peaks:
            return Numbers(integers, np.empty((len(logits), 0), np.int32), np.empty((len(logits), 0)))
        classes = _largest_classes(logits, self.peaks)
        return Numbers(integers, classes, self._corrections(logits, integers, classes))

    def _integers(self, logits: FloatArray) -> FloatArray:
        """Return the least-squares coefficients in whole steps, float32 [B, L + 1]."""
        centred = logits - self.mean
        doubt = DOUBT / self.step * np.linalg.norm(centred, axis=1, keepdims=True)
        if doubt.max(initial=0) > MOST_DOUBT:
            return self._rounded(centred.astype(np.float64) @ self._projection.T).astype(np.float32)
        coefficients = centred @ self._fast_projection
        size = np.abs(coefficients)
        size /= self.step
        size += ROUNDING
        integers: FloatArray = np.floor(size)
        size -= integers
        rows, columns = np.nonzero((size < doubt) | (size > 1 - doubt))
        np.copysign(integers, coefficients, out=integers)
        wide = centred[rows].astype(np.float64)
        integers[rows, columns] = self._rounded(np.einsum("nc,nc->n", wide, self._projection[columns]))
        return integers

    def _rounded(self, coefficients: Doubles) -> Doubles:
        return np.copysign(np.floor(np.abs(coefficients) / self.step + ROUNDING), coefficients)

    @cached_property
    def _projection(self) -> Doubles:
        """float64 [L + 1, C]: labels @ projection.T are least-squares coefficients in the rounded basis."""
        basis = self.basis.astype(np.float64)
        return np.asarray(np.linalg.solve(basis @ basis.T, basis))

    @cached_property
    def _fast_projection(self) -> FloatArray:
        return np.ascontiguousarray(self._projection.T, np.float32)

    def _corrections(self, logits: FloatArray, integers: FloatArray, classes: IntArray) -> Doubles:
        """Return integer corrections [B, m] for the labels of `classes` [B, m]. They preserve the argmax."""
        grid = self.step / PEAK_SHARE
        rows = np.arange(len(logits))
        places = classes.astype(np.intp)
        coarse = self._exactly(integers, places)
        # Ignore the rounding of the row's mean: it shifts all classes equally, which softmax ignores.
        coded_mean = self.step * self.basis[0, 0] * integers[:, 0]
        shift = (logits - self.mean).mean(axis=1, dtype=np.float64) - coded_mean
        wanted = np.take_along_axis(logits, places, axis=1) - shift[:, None]
        corrections: Doubles = np.rint((wanted - coarse) / grid)
        corrected = coarse + corrections * grid
        top = wanted.argmax(axis=1)
        others = (integers * np.float32(self.step)) @ self.basis
        others += self.mean
        np.put_along_axis(others, places, corrected.astype(np.float32), axis=1)
        others[rows, places[rows, top]] = -np.inf
        rival = others.argmax(axis=1)
        height = self._exactly(integers, rival[:, None])[:, 0]
        is_peak = places == rival[:, None]
        height = np.where(is_peak.any(axis=1), (corrected * is_peak).sum(axis=1), height)
        lift = np.maximum(np.ceil(LEAD - (corrected[rows, top] - height) / grid), 0)
        # Equal labels may change order, because neither was the unique maximum.
        beaten = logits[rows, rival] < logits[rows, places[rows, top]]
        corrections[rows, top] += np.where(beaten, lift, 0)
        return corrections

    def _exactly(self, integers: FloatArray, places: npt.NDArray[np.intp]) -> Doubles:
        """Return the decoded labels [B, n] of the classes `places` [B, n] in double precision."""
        columns = self._columns[places]
        products = np.einsum("bl,bnl->bn", integers.astype(np.float64), columns)
        return np.asarray(self.mean[places] + self.step * products)

    @cached_property
    def _columns(self) -> Doubles:
        return np.ascontiguousarray(self.basis.T, np.float64)

    def decode(
        self, payload: Payload, *, rows: int, classes: int, dtype: npt.DTypeLike = np.float32
    ) -> LabelArray:
        if classes != self.basis.shape[1]:
            raise PoolCorruptError(
                "codec was fitted to a different number of classes", expected=self.basis.shape[1], got=classes
            )
        with np.errstate(over="ignore", invalid="ignore"):
            labels = self._rebuilt(self._stored(payload, rows))
        if not np.isfinite(labels).all():
            raise PoolCorruptError("a label is not finite", expected="finite values")
        return converted(labels, dtype)

    def split(self, payload: Payload, *, rows: int, classes: int) -> Parts:
        """Return coefficients [B, L + 1], int64 classes [B, m] of corrected labels, corrections [B, m]."""
        coefficients, peak_classes, peaks = self._scaled(self._stored(payload, rows))
        # torch's scatter_add_ requires int64 indices.
        return coefficients, peak_classes.astype(np.int64), peaks

    def join(self, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        import torch

        coefficients, classes, peaks = parts
        device = coefficients.device
        if device not in self._on_device:
            arrays = (self.basis, self.mean)
            basis, mean = (torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays)
            self._on_device[device] = basis, mean
        basis, mean = self._on_device[device]
        labels = torch.addmm(mean, coefficients, basis).scatter_add_(1, classes, peaks)
        return softmax(labels) if self.label_kind == "probabilities" else labels

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_on_device": {}}

    def _rebuilt(self, numbers: Numbers) -> FloatArray:
        coefficients, classes, peaks = self._scaled(numbers)
        labels: FloatArray = coefficients @ self.basis
        labels += self.mean
        if self.peaks:
            labels[np.arange(len(labels))[:, None], classes] += peaks
        return softmax(labels) if self.label_kind == "probabilities" else labels

    def canonical(self, payload: Payload, *, rows: int, classes: int) -> CanonicalBytes:
        return _canonical(self._stored(payload, rows))

    def _scaled(self, numbers: Numbers) -> tuple[FloatArray, IntArray, FloatArray]:
        """Return coefficients [B, L + 1], the classes [B, m] of corrected labels, and corrections [B, m]."""
        return (
            np.multiply(numbers.integers, self.step, dtype=np.float32),
            numbers.classes,
            np.multiply(numbers.peaks, self.step / PEAK_SHARE, dtype=np.float32),
        )

    def _stored(self, payload: Payload, rows: int) -> Numbers:
        blobs = [payload[name][0].as_py() for name in self._bands]
        integers = unpack_bands(blobs, self.edges, rows, names=self._bands)
        if not self.peaks:
            return Numbers(integers, np.empty((rows, 0), np.int32), np.empty((rows, 0), np.int16))
        shape = (rows, self.peaks)
        gaps = payload["peak_gaps"][0].as_buffer()
        values: Integers = unpack_integers(payload["peak_values"][0].as_py(), shape, where="peak_values")
        return Numbers(integers, unpack_sets(gaps, shape, self.basis.shape[1], where="peak_gaps"), values)

    @classmethod
    def restore(cls, parameters: Mapping[str, Any], tables: Mapping[str, bytes]) -> Codec:
        where = f"codec {cls.name}"
        known = convert(parameters, _Settings, where=where, all_known=True)
        edges = known.edges
        with np.errstate(over="ignore"):
            if not 0 < np.float32(known.step) < np.inf:
                raise field_error("step", "a number above 0 that float32 can hold", known.step, where=where)
        if len(edges) < 2 or edges[0] != 0 or list(edges) != sorted(set(edges)):
            raise field_error("edges", "two or more numbers, increasing from 0", edges, where=where)
        loaded = KltTables.load(tables)
        if edges[-1] != len(loaded.scales) + 1:
            raise field_error("edges", f"increasing from 0 to {len(loaded.scales) + 1}", edges, where=where)
        if known.peaks > loaded.classes:
            raise field_error("peaks", f"at most {loaded.classes}", known.peaks, where=where)
        return cls(tables=loaded, **vars(known))


def _canonical(numbers: Numbers) -> CanonicalBytes:
    parts = (numbers.integers.astype("<i2"), numbers.classes.astype("<i4"), numbers.peaks.astype("<i2"))
    return [raw_bytes(part) for part in parts]


def _largest_classes(labels: LabelArray, k: int) -> IntArray:
    """Return the classes of the k largest values per row: int32 [B, k], ascending in each row."""
    if k == 1:
        return np.asarray(labels.argmax(axis=1)[:, None], np.int32)
    return members(largest(labels, k), k)


@dataclass(frozen=True, kw_only=True, eq=False)
class KltTables:
    """A quantised basis.

    vectors: int16 [L, C]; vector j of the basis is scales[j] * vectors[j]. scales: float32 [L].
    mean: float16 [C]. packed: the stored vectors if they were read from a pool, else None.
    """

    vectors: Integers
    scales: FloatArray
    mean: npt.NDArray[np.float16]
    packed: bytes | None = None

    def __post_init__(self) -> None:
        if self.vectors.size > MAX_BASIS_VALUES:
            raise InvalidArgumentError(
                "basis of codec 'klt' is too large",
                expected=f"at most {MAX_BASIS_VALUES} numbers",
                got=f"{len(self.scales)} vectors of {self.classes} classes",
                hint="request a lower fidelity, or use codec 'int8'",
            )

    @property
    def classes(self) -> int:
        return len(self.mean)

    def basis(self) -> FloatArray:
        """Return float32 [L + 1, C]: the constant unit vector, then the scaled vectors."""
        basis = np.empty((len(self.scales) + 1, self.classes), np.float32)
        basis[0] = 1 / np.sqrt(self.classes)
        np.multiply(self.vectors, self.scales[:, None], out=basis[1:])
        return basis

    def digest(self) -> bytes:
        """Return the SHA-256 of the numbers, not of the files, because compressors may differ."""
        parts = (self.vectors.astype("<i2"), self.scales.astype("<f4"), self.mean.astype("<f2"))
        return hashlib.sha256(b"".join(raw_bytes(part) for part in parts)).digest()

    @cached_property
    def files(self) -> dict[str, bytes]:
        packed = pack_integers(self.vectors) if self.packed is None else self.packed
        return {BASIS: packed, SCALES: _npy(self.scales), MEAN: _npy(self.mean)}

    @staticmethod
    def load(files: Mapping[str, bytes]) -> KltTables:
        """Load the tables from {name: bytes}. Refuse missing, corrupt or inconsistent files."""
        scales = _loaded(files, SCALES, np.float32)
        mean = _loaded(files, MEAN, np.float16)
        if len(scales) > len(mean) or len(scales) * len(mean) > MAX_BASIS_VALUES:
            raise PoolCorruptError(
                "codec table has the wrong length",
                where=SCALES,
                expected=f"at most {len(mean)} scales and {MAX_BASIS_VALUES} basis values",
                got=len(scales),
            )
        packed = _file(files, BASIS)
        basis = unpack_integers(packed, (len(scales), len(mean)), where=BASIS)
        return KltTables(vectors=basis, scales=scales, mean=mean, packed=packed)


def _npy(array: npt.NDArray[Any]) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array.astype(array.dtype.newbyteorder("<")), allow_pickle=False)
    return sink.getvalue()


def _file(files: Mapping[str, bytes], name: str) -> bytes:
    if name not in files:
        raise PoolCorruptError("codec table is missing", where=name, hint="restore the pool's codec folder")
    return files[name]


def _loaded(files: Mapping[str, bytes], name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an npy table [n]. Require version 1.0, `dtype`, finite values, and no trailing bytes."""
    data = _file(files, name)
    kind = np.dtype(dtype).newbyteorder("<")
    header = _NPY_HEADER.match(data)
    if header is None or len(header[0]) != _HEADER_START + int.from_bytes(data[8:_HEADER_START], "little"):
        raise PoolCorruptError(
            "codec table is corrupt", where=name, expected="npy of version 1.0 and one dimension"
        )
    start, size = len(header[0]), int(header["count"]) * kind.itemsize
    if header["kind"].decode() != kind.str or len(data) - start != size:
        raise PoolCorruptError(
            "codec table has the wrong type or length",
            where=name,
            expected=f"{kind.str} in {size} bytes",
            got=f"{header['kind'].decode()} in {len(data) - start} bytes",
        )
    array = np.frombuffer(data, kind, offset=start)
    if not np.isfinite(array).all():
        raise PoolCorruptError("codec table is not finite", where=name, expected="finite values")
    return array
