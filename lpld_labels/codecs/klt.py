"""`klt`: labels as a few quantised coordinates in the basis that suits the pool best.

A row of C logits is coded as

    labels = mean + step * integers @ basis,    then    labels[peak classes] += step / 8 * peak integers

Basis vector 0 is the constant 1/sqrt(C): its coefficient is the row's mean, which softmax does not
see but losses on raw logits (MSE) do; at the common step it costs about half a byte a row. The other
vectors are the principal directions of the pool's labels (Karhunen-Loeve transform, klt_fit.py), for
which one quantisation step for all coefficients is the best there is under squared error, and so under
KL divergence at a high temperature. At a low temperature the largest labels count most, and what is
special about a row's own peak lies in no common direction: so the few largest of each row are corrected
one by one. The very largest stays the largest: argmax survives.

One row per batch; one column per band of integers (bands.py) and two for the peaks. Pools of
probabilities are coded as log-probabilities and decoded through softmax.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs.bands import Integers, pack_bands, pack_integers, unpack_bands, unpack_integers
from lpld_labels.codecs.base import Codec, EncodedLabels, Granularity, Payload, raw_bytes
from lpld_labels.codecs.class_sets import pack_sets, unpack_sets
from lpld_labels.codecs.fitting import Fitter, FittingLabels
from lpld_labels.codecs.float16 import converted
from lpld_labels.codecs.klt_quantise import PEAK_SHARE, KltQuantiser, Numbers
from lpld_labels.codecs.klt_tables import KltTables
from lpld_labels.codecs.label_meaning import softmax
from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.digests import CanonicalBytes
from lpld_labels.format.json_fields import FieldReader
from lpld_labels.format.limits import MAX_CLASSES
from lpld_labels.format.records import IntArray, LabelArray
from lpld_labels.format.schema import LABEL_KINDS, Column

FloatArray = npt.NDArray[np.float32]


class KltParts(NamedTuple):
    """A batch before the last step of decoding.

    coefficients: float32 [B, L + 1]. classes: int32 [B, m]. peaks: float32 [B, m].
    labels = mean + coefficients @ basis; then labels[b, classes[b, i]] += peaks[b, i]; then, for pools
    of probabilities, softmax.
    """

    coefficients: FloatArray
    classes: IntArray
    peaks: FloatArray


class KltCodec(Codec):
    """Transform-coded labels.

    step: quantisation step in logits. edges: of the bands (see `band_edges`); the last is L + 1.
    peaks: how many of a row's largest labels are corrected.
    target: what was asked for when the codec was fitted, for people and for resuming.
    """

    name = "klt"
    lossless = False
    demands = ("fidelity", "bytes_per_row", "step", "budget")
    planned = True

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
        self.mean: FloatArray = tables.mean.astype(np.float32)
        """float32 [C]."""
        self.basis: FloatArray = tables.basis()
        """float32 [L + 1, C]."""

    @classmethod
    def fitter(cls, labels: FittingLabels, *, rows: int, seed: int = 0) -> Fitter:
        """Return what fits this codec to labels."""
        # Fitting codes labels, and is needed only once.
        from lpld_labels.codecs.klt_fit import KltFitter

        return KltFitter(
            fit=labels.fit,
            tune=labels.tune,
            rows=rows,
            batch_size=labels.batch_size,
            label_kind=labels.label_kind,
            seed=seed,
            keeper=labels.keeper,
        )

    @property
    def granularity(self) -> Granularity:
        """One row per batch."""
        return "batch"

    def describe(self) -> str:
        """Return step and number of coefficients."""
        return f"{self.name}, step {self.step:.4g}, {self.dimensions} coefficients per row"

    @property
    def dimensions(self) -> int:
        """Number of coefficients per row, the row mean included."""
        return len(self.basis)

    def parameters(self) -> dict[str, Any]:
        """Return what the decoder needs beside the tables, and what was asked for."""
        return {
            "step": self.step,
            "edges": list(self.edges),
            "peaks": self.peaks,
            "label_kind": self.label_kind,
            "target": self.target,
        }

    def tables(self) -> dict[str, bytes]:
        """Return the basis, the scales of its vectors and the mean."""
        return dict(self._files)

    @cached_property
    def _files(self) -> dict[str, bytes]:
        return self._tables.dump()

    def identity(self) -> bytes:
        """Return step, peaks, and a digest of basis and mean: integers mean nothing without them."""
        return struct.pack("<dI", self.step, self.peaks) + self._tables.digest()

    def require_fit(self, *, classes: int) -> None:
        """Refuse tables of another number of classes."""
        if classes != self._tables.classes:
            raise PoolCorruptError(
                "codec table is of another number of classes",
                where="mean.npy",
                expected=classes,
                got=self._tables.classes,
            )

    def payload_columns(self, classes: int) -> tuple[Column, ...]:
        """Return one binary column per band, and two for the peaks if there are any."""
        names = self._bands + (("peak_gaps", "peak_values") if self.peaks else ())
        return tuple(Column(name=name, type=pa.binary(), component="labels") for name in names)

    @cached_property
    def _bands(self) -> tuple[str, ...]:
        return tuple(f"band_{number}" for number in range(len(self.edges) - 1))

    # Encoding

    def encode(self, labels: LabelArray) -> EncodedLabels:
        """Project, quantise, correct the peaks, and pack float16/float32 [B, C]."""
        numbers = self._quantiser.numbers(labels)
        blobs = dict(zip(self._bands, pack_bands(numbers.integers, self.edges), strict=True))
        if self.peaks:
            blobs["peak_gaps"] = pack_sets(numbers.classes, labels.shape[1])
            blobs["peak_values"] = pack_integers(numbers.peaks)
        payload = {name: pa.array([blob], pa.binary()) for name, blob in blobs.items()}
        return EncodedLabels(payload=payload, canonical=_canonical(numbers))

    def approximated(self, labels: LabelArray) -> FloatArray:
        """Return what decoding the encoded labels would give, without packing in between."""
        return self.rebuilt(self._scaled(self._quantiser.numbers(labels)))

    def integers(self, labels: LabelArray) -> FloatArray:
        """Return the whole numbers [B, L + 1] that stand for the labels' coefficients."""
        return self._quantiser.numbers(labels).integers

    @cached_property
    def _quantiser(self) -> KltQuantiser:
        return KltQuantiser(
            self.basis, self.mean, step=self.step, peaks=self.peaks, label_kind=self.label_kind
        )

    # Decoding

    def decode(
        self, payload: Payload, *, rows: int, classes: int, dtype: npt.DTypeLike = np.float32
    ) -> LabelArray:
        """Return labels [rows, classes]: one matrix product and a few additions."""
        if classes != self.basis.shape[1]:
            raise PoolCorruptError(
                "codec was fitted to another number of classes", expected=self.basis.shape[1], got=classes
            )
        with np.errstate(over="ignore", invalid="ignore"):
            labels = self.rebuilt(self.parts(payload, rows=rows))
        if not np.isfinite(labels).all():
            raise PoolCorruptError("a label is not finite", expected="finite values")
        return converted(labels, dtype)

    def parts(self, payload: Payload, *, rows: int) -> KltParts:
        """Return what is left to decode elsewhere, e.g. on the training device."""
        return self._scaled(self._stored(payload, rows))

    def rebuilt(self, parts: KltParts) -> FloatArray:
        """Return the labels float32 [B, C] that the parts stand for."""
        labels: FloatArray = parts.coefficients @ self.basis
        labels += self.mean
        if self.peaks:
            labels[np.arange(len(labels))[:, None], parts.classes] += parts.peaks
        return softmax(labels) if self.label_kind == "probabilities" else labels

    def canonical(self, payload: Payload, *, rows: int, classes: int) -> CanonicalBytes:
        """Return the integers, whatever the entropy coder made of them."""
        return _canonical(self._stored(payload, rows))

    def _scaled(self, numbers: Numbers) -> KltParts:
        return KltParts(
            np.multiply(numbers.integers, self.step, dtype=np.float32),
            numbers.classes,
            np.multiply(numbers.peaks, self.step / PEAK_SHARE, dtype=np.float32),
        )

    def _stored(self, payload: Payload, rows: int) -> Numbers:
        blobs = [payload[name][0].as_py() for name in self._bands]
        integers = unpack_bands(blobs, self.edges, rows, names=self._bands)
        if not self.peaks:
            return Numbers(integers, _none(rows), np.empty((rows, 0), np.int16))
        shape = (rows, self.peaks)
        gaps = payload["peak_gaps"][0].as_buffer()
        values: Integers = unpack_integers(payload["peak_values"][0].as_py(), shape, where="peak_values")
        return Numbers(integers, unpack_sets(gaps, shape, self.basis.shape[1], where="peak_gaps"), values)

    @classmethod
    def restore(cls, parameters: Mapping[str, Any], tables: Mapping[str, bytes]) -> Codec:
        """Rebuild from parameters and tables; what does not fit together is refused."""
        reader = FieldReader(parameters, where=f"codec {cls.name}")
        step = reader.number("step")
        edges = reader.integers("edges", maximum=MAX_CLASSES + 1)
        peaks = reader.integer("peaks")
        label_kind = reader.text("label_kind", choices=LABEL_KINDS)
        target = reader.mapping("target")
        reader.finish(all_known=True)
        with np.errstate(over="ignore"):
            if not 0 < np.float32(step) < np.inf:
                raise reader.error("step", "a number above 0 that float32 can hold", step)
        if len(edges) < 2 or edges[0] != 0 or list(edges) != sorted(set(edges)):
            raise reader.error("edges", "two or more, rising from 0", list(edges[:20]))
        loaded = KltTables.load(tables)
        if edges[-1] != len(loaded.scales) + 1:
            raise reader.error("edges", f"rising from 0 to {len(loaded.scales) + 1}", list(edges[:20]))
        if peaks > loaded.classes:
            raise reader.error("peaks", f"at most {loaded.classes}", peaks)
        return cls(tables=loaded, step=step, edges=edges, peaks=peaks, label_kind=label_kind, target=target)


def _none(rows: int) -> IntArray:
    return np.empty((rows, 0), np.int32)


def _canonical(numbers: Numbers) -> CanonicalBytes:
    parts = (numbers.integers.astype("<i2"), numbers.classes.astype("<i4"), numbers.peaks.astype("<i2"))
    return [raw_bytes(part) for part in parts]
