"""The one interface every label codec implements.

A codec turns the labels of a batch, float16/float32 [B, C], into *payload columns* (Arrow arrays
with one row per view or one row per batch) and back. What it needs once per pool is found before the
first batch (`fitter`) and lives in its `parameters` (small, JSON, in the manifest) and `tables` (files).

Nobody outside this package asks which class a codec is: whatever they want to know is a member here.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.format import arrow
from lpld_labels.format.arrow import Array
from lpld_labels.format.digests import CanonicalBytes
from lpld_labels.format.records import LabelArray
from lpld_labels.format.schema import Column
from lpld_labels.format.strict_json import to_json

if TYPE_CHECKING:
    from lpld_labels.codecs.fitting import Fitter, FittingLabels
    from lpld_labels.codecs.topk import TopKCodec

Granularity = Literal["view", "batch"]
Payload = Mapping[str, Array]
"""Payload column name -> Arrow array of B rows (granularity view) or 1 row (batch)."""


def raw_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return an array's bytes in row-major order, copying only if it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def binary_cell(data: bytes) -> Array:
    """Return a binary column of one row without copying its bytes."""
    offsets = arrow.buffer_of(np.array([0, len(data)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(data)])


@dataclass(frozen=True, kw_only=True)
class EncodedLabels:
    """Labels of one batch as a codec stores them.

    payload: the payload columns. canonical: the stored values in a form that does not depend on
    how they are packed; the batch digest is taken over it.
    """

    payload: Payload
    canonical: CanonicalBytes


class Codec(ABC):
    """Encodes and decodes the labels of one batch at a time, independent of every other batch."""

    name: ClassVar[str]
    lossless: ClassVar[bool]
    """True when decoding gives back the stored labels bit for bit."""

    spelled_by: ClassVar[tuple[str, ...]] = ()
    """Fields that a codec's spelling gives after its name."""

    native_dtype: ClassVar[npt.DTypeLike] = np.float32
    """The dtype that decoding gives without rounding: what readers return unless told otherwise."""

    label_dtype: ClassVar[npt.DTypeLike] = np.float16
    """What new labels are rounded to before they are encoded: a pool built with a lossy codec then equals a
    float16 pool encoded later."""

    spellings: ClassVar[tuple[str, ...]] = ()
    """How people ask for codecs of this kind, e.g. ``f16:plain``; without any, the name alone."""

    demands: ClassVar[tuple[str, ...]] = ()
    """What codecs of this kind can be fitted to (fields of `CodecRequest`); none if they need no fitting."""

    planned: ClassVar[bool] = False
    """Whether `plan` tries codecs of this kind unasked."""

    label_kind: str = "logits"
    """What the labels are; those of a pool of probabilities are not negative, which decoding checks."""

    target: Mapping[str, Any] = {}
    """What was asked for when the codec was fitted (see `CodecRequest.target`)."""

    @classmethod
    def spelled(cls, arguments: Sequence[str], *, label_kind: str) -> Codec | None:
        """Return the codec of a spelling ``name:argument:...``, or None if there is none such."""
        del label_kind
        return None if arguments or cls.demands else cls()

    @property
    def spelling(self) -> str:
        """How a person asks for this codec; `spelled` takes it apart again."""
        return ":".join([self.name, *(str(getattr(self, name)) for name in self.spelled_by)])

    @classmethod
    def fitter(cls, labels: FittingLabels, *, rows: int, seed: int = 0) -> Fitter:
        """Return what fits codecs of this kind to labels; `rows` of the pool will share what is fitted."""
        raise NotImplementedError(f"codec '{cls.name}' needs no fitting")

    @property
    def top_k(self) -> TopKCodec | None:
        """The codec itself if it stores some entries of each row by their class, else None."""
        return None

    def describe(self) -> str:
        """Return name and settings in a few words."""
        settings = ", ".join(f"{name} {value}" for name, value in self.parameters().items())
        return f"{self.name}, {settings}" if settings else self.name

    @property
    @abstractmethod
    def granularity(self) -> Granularity:
        """Whether a labels file has one row per view or one per batch."""

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Return what the decoder needs, as JSON values for the manifest."""

    def tables(self) -> dict[str, bytes]:
        """Return what the decoder needs that is too large for JSON: file name -> bytes."""
        return {}

    def identity(self) -> bytes:
        """Return what, beside the name, decides the meaning of canonical bytes (not how they are packed)."""
        return b""

    def fingerprint(self) -> str:
        """Return what tells this codec, with its settings and tables, from every other: hex SHA-256."""
        document = to_json({"name": self.name, "parameters": self.parameters()})
        return hashlib.sha256(document + self.identity()).hexdigest()

    def require_fit(self, *, classes: int) -> None:
        """Refuse, with ManifestError or PoolCorruptError, to serve a pool of so many classes."""
        del classes

    @abstractmethod
    def payload_columns(self, classes: int) -> tuple[Column, ...]:
        """Return the payload columns of a labels file."""

    @abstractmethod
    def encode(self, labels: LabelArray) -> EncodedLabels:
        """Encode float16/float32 [B, C]. Values must be finite."""

    @abstractmethod
    def decode(
        self, payload: Payload, *, rows: int, classes: int, dtype: npt.DTypeLike = np.float32
    ) -> LabelArray:
        """Decode to [rows, classes] of the given dtype. May return a read-only view.

        What is not finite, or a negative probability, is refused with PoolCorruptError.
        """

    @abstractmethod
    def canonical(self, payload: Payload, *, rows: int, classes: int) -> CanonicalBytes:
        """Return the same canonical bytes that `encode` gave for this payload."""

    @classmethod
    @abstractmethod
    def restore(cls, parameters: Mapping[str, Any], tables: Mapping[str, bytes]) -> Codec:
        """Rebuild the codec from a manifest; raise ManifestError on parameters it does not know.

        tables: exactly those that `tables` gives. Whether it fits the pool is `require_fit`'s to say.
        """
