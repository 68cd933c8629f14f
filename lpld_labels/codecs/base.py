"""The interface of all label codecs.

A codec turns the labels of a batch, float16/float32 [B, C], into *payload columns* (Arrow arrays with one row
per view or per batch) and back. What is fitted once per pool (klt_fit.py) is in its `parameters` (JSON, in
the manifest) and `tables` (files). Other packages use a codec's members and never test its class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.format.arrow import Array
from lpld_labels.format.digests import CanonicalBytes
from lpld_labels.format.records import LabelArray
from lpld_labels.format.schema import Column

if TYPE_CHECKING:
    import torch

    from lpld_labels.codecs.topk import TopKCodec

Granularity = Literal["view", "batch"]
Payload = Mapping[str, Array]
"""Payload column name -> Arrow array of B rows (granularity view) or 1 row (batch)."""
FloatArray = npt.NDArray[np.float32]
Parts = tuple[npt.NDArray[Any], ...]
"""Half-decoded labels: arrays whose first dimension is the batch's rows."""

SERIAL_VALUES = 32_768  # For more, torch starts threads on a CPU, which costs more than it gains here.


def raw_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return an array's bytes in row-major order, copying only if it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def binary_cell(data: bytes) -> Array:
    """Return a binary column of one row without copying its bytes."""
    offsets = pa.py_buffer(raw_bytes(np.array([0, len(data)], np.int32)))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(data)])


def row_pieces(*tensors: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """Cut tensors into the same rows: on a CPU at most SERIAL_VALUES of the first, else all rows."""
    import torch

    first = tensors[0]
    rows = len(first) if first.device.type != "cpu" else SERIAL_VALUES // max(1, first.shape[1])
    return list(zip(*(torch.split(tensor, max(1, rows)) for tensor in tensors), strict=True))


@dataclass(frozen=True, kw_only=True)
class EncodedLabels:
    """Labels of one batch as stored. canonical: the values independent of packing, for the batch digest."""

    payload: Payload
    canonical: CanonicalBytes


class Codec(ABC):
    """Encodes and decodes the labels of one batch at a time, independent of every other batch."""

    name: ClassVar[str]
    lossless: ClassVar[bool]  # Decoding gives back the stored labels bit for bit.
    native_dtype: ClassVar[npt.DTypeLike] = np.float32  # Decoded without rounding; the default of readers.
    # New labels are rounded to this first: building with a lossy codec then equals encoding a float16 pool.
    label_dtype: ClassVar[npt.DTypeLike] = np.float16
    specs: ClassVar[tuple[str, ...]] = ()  # Forms that `parse` accepts, e.g. f16:plain; default: the name.
    fitted: ClassVar[bool] = False  # Fitted to a pool's labels (klt_fit.py).
    planned: ClassVar[bool] = False  # Tried by `plan` by default.
    label_kind: str = "logits"  # Decoding refuses negative probabilities.

    @classmethod
    def parse(cls, arguments: Sequence[str], *, label_kind: str) -> Codec | None:
        """Return the codec of a spec ``name:argument:...``, or None if the spec is invalid."""
        del label_kind
        return None if arguments or cls.fitted else cls()

    @property
    def spec(self) -> str:
        """The text that `parse` turns into this codec."""
        return self.name

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
        """Return what decides, with the name, the meaning of canonical bytes."""
        return b""

    def require_fit(self, *, classes: int) -> None:
        """Raise ManifestError or PoolCorruptError if the codec does not fit a pool of so many classes."""
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
        """Decode to [rows, classes], perhaps as a read-only view.

        A decoder refuses non-finite values and negative probabilities only if that takes no pass over the
        labels; writers and `verify` always do.
        """

    def split(self, payload: Payload, *, rows: int, classes: int) -> Parts:
        """Do the part of decoding that needs a CPU; `join` does the rest on any device."""
        return (self.decode(payload, rows=rows, classes=classes, dtype=self.native_dtype),)

    def join(self, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return labels float32 [n, C] from the same n rows of all parts, on the device of the parts."""
        import torch

        (labels,) = parts
        if labels.dtype == torch.float32:
            return labels
        wide = torch.empty_like(labels, dtype=torch.float32)
        for target, source in row_pieces(wide, labels):
            target.copy_(source)
        return wide

    @abstractmethod
    def canonical(self, payload: Payload, *, rows: int, classes: int) -> CanonicalBytes:
        """Return the same canonical bytes that `encode` gave for this payload."""

    @classmethod
    @abstractmethod
    def restore(cls, parameters: Mapping[str, Any], tables: Mapping[str, bytes]) -> Codec:
        """Rebuild the codec from a manifest; raise ManifestError on unknown parameters."""
