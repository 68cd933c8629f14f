"""The interface of all label codecs.

A codec encodes the labels of a batch, float16/float32 [B, C], as *payload columns* (Arrow arrays with one row
per view or per batch) and decodes them. Its settings are `parameters` (JSON, in the manifest) and `tables`
(files). Other packages must use a codec's members and must not test its class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.format.arrow import Array
from lpld_labels.format.digests import CanonicalBytes
from lpld_labels.format.records import LabelArray
from lpld_labels.format.schema import Column
from lpld_labels.format.strict_json import NoFields, convert

if TYPE_CHECKING:
    import torch

    from lpld_labels.codecs.topk import TopKCodec

Granularity = Literal["view", "batch"]
Payload = Mapping[str, Array]
"""Payload column name -> Arrow array of B rows (granularity view) or 1 row (batch)."""
FloatArray = npt.NDArray[np.float32]
Parts = tuple[npt.NDArray[Any], ...]  # Partly decoded labels (`Codec.split`), one entry per row.

SERIAL_VALUES = 32_768  # Above this, torch starts threads on a CPU, which costs more time than it saves.


def raw_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return an array's bytes in row-major order. Copy only if the array is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def binary_cell(data: bytes) -> Array:
    """Return a binary column of one row without copying its bytes."""
    offsets = pa.py_buffer(raw_bytes(np.array([0, len(data)], np.int32)))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(data)])


def row_pieces(*tensors: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """Split tensors at the same rows. On a CPU, the first tensor's pieces have up to SERIAL_VALUES values."""
    import torch

    first = tensors[0]
    rows = len(first) if first.device.type != "cpu" else SERIAL_VALUES // max(1, first.shape[1])
    return list(zip(*(torch.split(tensor, max(1, rows)) for tensor in tensors), strict=True))


@dataclass(frozen=True, kw_only=True)
class EncodedLabels:
    """Labels of one batch as stored. canonical: bytes for the batch digest, independent of compression."""

    payload: Payload
    canonical: CanonicalBytes


class Codec(ABC):
    """Encodes and decodes the labels of one batch at a time, independently of other batches."""

    name: ClassVar[str]
    lossless: ClassVar[bool] = False  # Decoding returns the encoded labels bit for bit.
    native_dtype: ClassVar[npt.DTypeLike] = np.float32  # Readers' default dtype: decoding to it is exact.
    # New labels are rounded to this dtype, so building with a lossy codec equals encoding a float16 pool.
    label_dtype: ClassVar[npt.DTypeLike] = np.float16
    specs: ClassVar[tuple[str, ...]] = ()  # Specs that `parse` accepts, e.g. f16:plain. Empty: the name.
    fitted: ClassVar[bool] = False  # Whether the codec must be fitted to a pool's labels (klt_fit.py).
    planned: ClassVar[bool] = False  # Whether `plan` tries the codec by default.
    settings: ClassVar[type] = NoFields  # Dataclass of `parameters`; each field is an attribute of the codec.
    granularity: Granularity = "batch"  # A labels file has one row per view or one per batch.
    label_kind: str = "logits"  # Or "probabilities". Decoding refuses negative probabilities.

    @classmethod
    def parse(cls, arguments: Sequence[str], *, label_kind: str) -> Codec | None:
        """Return the codec of a spec ``name:argument:...``, or None if the spec is invalid."""
        return None if arguments or cls.fitted else cls()

    @property
    def spec(self) -> str:
        """The spec from which `parse` creates this codec."""
        return self.name

    @property
    def top_k(self) -> TopKCodec | None:
        """The codec itself if it stores only the values of some classes per row, else None."""
        return None

    def parameters(self) -> dict[str, Any]:
        """Return the decoder's settings as JSON values for the manifest."""
        return {setting.name: getattr(self, setting.name) for setting in fields(self.settings)}

    def tables(self) -> dict[str, bytes]:
        """Return the decoder's data that is too large for JSON: file name -> bytes."""
        return {}

    def identity(self) -> bytes:
        """Return the settings that determine the canonical bytes. The content digest covers them."""
        return b""

    def require_fit(self, *, classes: int) -> None:  # noqa: B027 - most codecs fit any number of classes
        """Raise ManifestError or PoolCorruptError if the codec does not fit a pool of `classes` classes."""

    @abstractmethod
    def payload_columns(self, classes: int) -> tuple[Column, ...]: ...

    @abstractmethod
    def encode(self, labels: LabelArray) -> EncodedLabels:
        """Encode float16/float32 [B, C]. Values must be finite."""

    @abstractmethod
    def decode(
        self, payload: Payload, *, rows: int, classes: int, dtype: npt.DTypeLike = np.float32
    ) -> LabelArray:
        """Decode to [rows, classes]. The result may be a read-only view.

        Checks for non-finite values and negative probabilities are skipped if they need a pass over the
        labels. Writers and `verify` always check.
        """

    def split(self, payload: Payload, *, rows: int, classes: int) -> Parts:
        """Do the part of decoding that needs a CPU; `join` does the rest on any device."""
        return (self.decode(payload, rows=rows, classes=classes, dtype=self.native_dtype),)

    def join(self, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return labels float32 [n, C] on the parts' device. parts: the same n rows of each `split` part."""
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
        """Return the same canonical bytes that `encode` returned with this payload."""

    @classmethod
    def restore(cls, parameters: Mapping[str, Any], tables: Mapping[str, bytes]) -> Codec:
        """Create the codec from a pool's parameters and tables; raise ManifestError on unknown parameters."""
        return cls(**vars(convert(parameters, cls.settings, where=f"codec {cls.name}", all_known=True)))
