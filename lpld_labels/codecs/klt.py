"""`klt`: labels as a few quantised coordinates in the basis that suits the pool best.

A row of C logits is coded as

    labels = mean + coefficients @ basis,    coefficients = step * integers

Basis vector 0 is the constant 1/sqrt(C): its coefficient is the row's mean, which softmax does not
see but losses on raw logits (MSE) do; at the common step it costs about half a byte a row. The other
vectors are the principal directions of the pool's labels (Karhunen-Loeve transform, klt_fit.py), for
which one quantisation step for all coefficients is the best there is under squared error, and so under
KL divergence at a high temperature. One row per batch, one column per band of integers (bands.py).

Pools of probabilities are coded as log-probabilities and decoded through softmax.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs.bands import Integers, pack_bands, pack_integers, unpack_bands, unpack_integers
from lpld_labels.codecs.base import CanonicalBytes, Codec, EncodedLabels, Granularity, Payload, raw_bytes
from lpld_labels.errors import PoolCorruptError
from lpld_labels.fields import FieldReader
from lpld_labels.halves import converted
from lpld_labels.probabilities import log_probabilities, softmax
from lpld_labels.records import LabelArray
from lpld_labels.schema import LABEL_KINDS, Column

FloatArray = npt.NDArray[np.float32]

ROUNDING = 0.46
"""A coefficient becomes floor(|c| / step + ROUNDING): a little dead zone, which saves 4 % of the bytes
at equal fidelity at T = 20 and costs 1 % at T = 1. Decoders do not need to know."""
DOUBT = 8e-6
"""Error of a single-precision product of length C, as a share of the row's norm; generous."""
MOST_DOUBT = 0.01
"""With more doubt than this, in steps, everything is computed in double precision at once."""

BASIS_TABLE = "basis.pco"
SCALE_TABLE = "scale.npy"
MEAN_TABLE = "mean.npy"


class KltCodec(Codec):
    """Transform-coded labels.

    vectors: int16 [L, C] and scales: float32 [L]; vector j of the basis is scales[j] * vectors[j].
    mean: float16 [C]. step: quantisation step in logits. edges: see `band_edges`; the last is L + 1.
    target: what was asked for when the codec was fitted, for people and for resuming.
    packed: the vectors as stored, where they were read from a pool.
    """

    name = "klt"
    lossless = False

    def __init__(
        self,
        *,
        vectors: Integers,
        scales: FloatArray,
        mean: npt.NDArray[np.float16],
        step: float,
        edges: Sequence[int],
        label_kind: str = "logits",
        target: Mapping[str, float] | None = None,
        packed: bytes | None = None,
    ) -> None:
        self.step = float(step)
        self.edges = tuple(edges)
        self.label_kind = label_kind
        self.target = dict(target or {})
        self.mean: FloatArray = mean.astype(np.float32)
        """float32 [C]."""
        self.basis: FloatArray = _basis(vectors, scales)
        """float32 [L + 1, C]: labels = mean + coefficients @ basis."""
        self._vectors = vectors
        self._scales = scales
        self._mean = mean
        self._packed = packed

    @property
    def granularity(self) -> Granularity:
        """One row per batch."""
        return "batch"

    @property
    def dimensions(self) -> int:
        """Number of coefficients per row, the row mean included."""
        return len(self.basis)

    def parameters(self) -> dict[str, Any]:
        """Return what the decoder needs beside the tables, and what was asked for."""
        return {
            "step": self.step,
            "edges": list(self.edges),
            "label_kind": self.label_kind,
            "target": self.target,
        }

    def tables(self) -> dict[str, bytes]:
        """Return the basis, the scales of its vectors and the mean."""
        return dict(self._tables)

    @cached_property
    def _tables(self) -> dict[str, bytes]:
        packed = pack_integers(self._vectors) if self._packed is None else self._packed
        return {BASIS_TABLE: packed, SCALE_TABLE: _npy(self._scales), MEAN_TABLE: _npy(self._mean)}

    def identity(self) -> str:
        """Name step, basis and mean: integers mean nothing without them."""
        # Over the numbers, not the tables: another version of the entropy coder may pack them otherwise.
        parts = (self._vectors.astype("<i2"), self._scales.astype("<f4"), self._mean.astype("<f2"))
        digest = hashlib.sha256(b"".join(raw_bytes(part) for part in parts)).hexdigest()
        return f"{self.name} step={self.step!r} basis={digest}"

    def payload_columns(self, classes: int) -> tuple[Column, ...]:
        """Return one binary column per band."""
        return tuple(Column(name=name, type=pa.binary(), component="labels") for name in self._names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(f"band_{number}" for number in range(len(self.edges) - 1))

    @cached_property
    def _projection(self) -> npt.NDArray[np.float64]:
        """float64 [C, L + 1]: labels @ projection are the least-squares coefficients.

        The basis is orthonormal up to the rounding of its entries; solving for that rounding keeps a
        coarse basis (small pools) from adding its error twice.
        """
        basis = self.basis.astype(np.float64)
        return np.asarray(np.linalg.solve(basis @ basis.T, basis).T)

    @cached_property
    def _fast_projection(self) -> FloatArray:
        return np.ascontiguousarray(self._projection, np.float32)

    # Encoding

    def encode(self, labels: LabelArray) -> EncodedLabels:
        """Project, quantise and pack float16/float32 [B, C]."""
        integers = self.quantised(labels)
        blobs = pack_bands(integers, self.edges)
        payload = {name: pa.array([blob], pa.binary()) for name, blob in zip(self._names, blobs, strict=True)}
        return EncodedLabels(payload=payload, canonical=_canonical(integers))

    def quantised(self, labels: LabelArray) -> FloatArray:
        """Return the whole numbers [B, L + 1] that stand for the labels, as float32.

        They are the same however many threads multiply: where single precision leaves a doubt on which
        side of a threshold a coefficient lies, it is computed again in double precision.
        """
        values = converted(labels, np.float32)
        if self.label_kind == "probabilities":
            values = log_probabilities(values)
        values = values - self.mean
        doubt = DOUBT / self.step * np.linalg.norm(values, axis=1, keepdims=True)
        if doubt.max(initial=0) > MOST_DOUBT:
            coefficients = values.astype(np.float64) @ self._projection
            return self._whole(coefficients).astype(np.float32)
        coefficients = values @ self._fast_projection
        size = np.abs(coefficients)
        size /= self.step
        size += ROUNDING
        integers: FloatArray = np.floor(size)
        size -= integers
        rows, columns = np.nonzero((size < doubt) | (size > 1 - doubt))
        np.copysign(integers, coefficients, out=integers)
        wide = values[rows].astype(np.float64)
        integers[rows, columns] = self._whole(np.einsum("nc,nc->n", wide, self._projection.T[columns]))
        return integers

    def _whole(self, coefficients: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.copysign(np.floor(np.abs(coefficients) / self.step + ROUNDING), coefficients)

    # Decoding

    def decode(
        self, payload: Payload, *, rows: int, classes: int, dtype: npt.DTypeLike = np.float32
    ) -> LabelArray:
        """Return labels [rows, classes]: one matrix product."""
        if classes != self.basis.shape[1]:
            raise PoolCorruptError(
                "codec was fitted to another number of classes", expected=self.basis.shape[1], got=classes
            )
        return converted(self.rebuilt(self.coefficients(payload, rows=rows)), dtype)

    def rebuilt(self, coefficients: FloatArray) -> FloatArray:
        """Return the labels float32 [B, C] that coefficients [B, L + 1] stand for."""
        labels: FloatArray = coefficients @ self.basis
        labels += self.mean
        return softmax(labels) if self.label_kind == "probabilities" else labels

    def coefficients(self, payload: Payload, *, rows: int) -> FloatArray:
        """Return float32 [rows, L + 1], to finish decoding elsewhere (e.g. on the training device).

        labels = mean + coefficients @ basis, and softmax over that for pools of probabilities.
        """
        return np.multiply(self._integers(payload, rows), self.step, dtype=np.float32)

    def canonical(self, payload: Payload, *, rows: int, classes: int) -> CanonicalBytes:
        """Return the integers, whatever the entropy coder made of them."""
        return _canonical(self._integers(payload, rows))

    def _integers(self, payload: Payload, rows: int) -> Integers:
        blobs = [payload[name][0].as_py() for name in self._names]
        return unpack_bands(blobs, self.edges, rows, names=self._names)

    @classmethod
    def restore(cls, parameters: Mapping[str, Any], tables: Mapping[str, bytes]) -> Codec:
        """Rebuild from parameters and tables; what does not fit together is refused."""
        reader = FieldReader(parameters, where=f"codec {cls.name}")
        step = reader.number("step")
        edges = tuple(int(edge) for edge in reader.numbers("edges"))
        label_kind = reader.text("label_kind", choices=LABEL_KINDS)
        target = reader.mapping("target")
        reader.finish()
        scales = _loaded(tables, SCALE_TABLE, np.float32)
        mean = _loaded(tables, MEAN_TABLE, np.float16)
        if not step > 0 or list(edges) != sorted(set(edges)) or edges[:1] != (0,):
            raise reader.error("edges", "rising band edges from 0 and a step > 0", [step, *edges])
        if edges[-1] != len(scales) + 1:
            raise reader.error("edges", f"a last edge of {len(scales) + 1}", edges[-1])
        shape = (len(scales), len(mean))
        packed = _table(tables, BASIS_TABLE)
        return cls(
            vectors=unpack_integers(packed, shape, where=BASIS_TABLE),
            packed=packed,
            scales=scales,
            mean=mean,
            step=step,
            edges=edges,
            label_kind=label_kind,
            target=target,
        )


def _basis(vectors: Integers, scales: FloatArray) -> FloatArray:
    """Return float32 [L + 1, C]: the constant vector, then the scaled ones."""
    count, classes = vectors.shape
    basis = np.empty((count + 1, classes), np.float32)
    basis[0] = 1 / np.sqrt(classes)
    np.multiply(vectors, scales[:, None], out=basis[1:])
    return basis


def _canonical(integers: npt.NDArray[Any]) -> CanonicalBytes:
    return [raw_bytes(integers.astype("<i2"))]


def _npy(array: npt.NDArray[Any]) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array.astype(array.dtype.newbyteorder("<")), allow_pickle=False)
    return sink.getvalue()


def _table(tables: Mapping[str, bytes], name: str) -> bytes:
    if name not in tables:
        raise PoolCorruptError("codec table is missing", where=name, hint="restore the pool's codec folder")
    return tables[name]


def _loaded(tables: Mapping[str, bytes], name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    try:
        array = np.load(io.BytesIO(_table(tables, name)), allow_pickle=False)
    except ValueError as error:
        raise PoolCorruptError(f"codec table is damaged: {error}", where=name) from None
    if array.ndim != 1 or array.dtype != np.dtype(dtype):
        raise PoolCorruptError(
            "codec table has the wrong type", where=name, expected=np.dtype(dtype), got=array.dtype
        )
    return np.asarray(array)
