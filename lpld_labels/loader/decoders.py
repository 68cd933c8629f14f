"""Label decoding in two steps: what must run on a CPU, and what the training device does better.

`prepare` runs in a worker and turns a payload into arrays whose first dimension is the batch's rows;
`finish` runs where the student trains and turns (some rows of) them into labels. A codec without an
entry in `DECODERS` is decoded whole by the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from lpld_labels.codecs import Codec, Payload
from lpld_labels.codecs.affine import AffineCodec
from lpld_labels.codecs.klt import KltCodec
from lpld_labels.codecs.label_meaning import softmax
from lpld_labels.render.normalisation import SERIAL_VALUES

Parts = tuple[npt.NDArray[Any], ...]


class TorchDecoder(Protocol):
    """Decodes the labels of one codec. Made from the pool's codec and its number of classes."""

    def prepare(self, payload: Payload, rows: int) -> Parts:
        """Return what `finish` needs, each array with `rows` rows."""

    def finish(self, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return labels float32 [n, C] on the parts' device, from the same n rows of every part."""


class WholeDecoder:
    """Decodes in the worker, to the codec's own dtype; the device only widens it."""

    def __init__(self, codec: Codec, classes: int) -> None:
        self._codec = codec
        self._classes = classes

    def prepare(self, payload: Payload, rows: int) -> Parts:
        labels = self._codec.decode(payload, rows=rows, classes=self._classes, dtype=self._codec.native_dtype)
        return (labels,)

    def finish(self, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        (labels,) = parts
        if labels.dtype == torch.float32:
            return labels
        wide = torch.empty_like(labels, dtype=torch.float32)
        for target, source in _pieces(wide, labels):
            target.copy_(source)
        return wide


class GridDecoder:
    """Sends the codes as they are; the device lays them on each row's grid."""

    def __init__(self, codec: AffineCodec, classes: int) -> None:
        self._codec = codec
        self._classes = classes

    def prepare(self, payload: Payload, rows: int) -> Parts:
        grid = self._codec.grid(payload, rows, self._classes)
        return grid.codes, grid.scale, grid.offset

    def finish(self, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        codes, scale, offset = parts
        values = torch.empty_like(codes, dtype=torch.float32)
        for target, code, step, start in _pieces(values, codes, scale[:, None], offset[:, None]):
            # The same two roundings as RowGrid.values, so that both give the same bits.
            target.copy_(code).mul_(step).add_(start)
        return values


class KltDecoder:
    """Entropy decoding in the worker; one matrix product and a few additions on the device."""

    def __init__(self, codec: KltCodec, classes: int) -> None:
        del classes
        self._codec = codec
        self._tables: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def prepare(self, payload: Payload, rows: int) -> Parts:
        parts = self._codec.parts(payload, rows=rows)
        # torch scatters by int64 only.
        return parts.coefficients, parts.classes.astype(np.int64), parts.peaks

    def finish(self, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        coefficients, classes, peaks = parts
        basis, mean = self._on(coefficients.device)
        labels = torch.addmm(mean, coefficients, basis).scatter_add_(1, classes, peaks)
        return softmax(labels) if self._codec.label_kind == "probabilities" else labels

    def _on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return basis [L + 1, C] and mean [C] on a device, moved there once."""
        if device not in self._tables:
            arrays = (self._codec.basis, self._codec.mean)
            basis, mean = (torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays)
            self._tables[device] = (basis, mean)
        return self._tables[device]


def _pieces(values: torch.Tensor, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the same rows of all tensors, on a CPU so few at a time that torch's threads stay out of it."""
    rows = max(1, SERIAL_VALUES // max(1, values.shape[1])) if values.device.type == "cpu" else len(values)
    yield from zip(*(torch.split(tensor, max(1, rows)) for tensor in (values, *others)), strict=True)


DECODERS: Mapping[str, Callable[[Any, int], TorchDecoder]] = {
    "int8": GridDecoder,
    "int6": GridDecoder,
    "int4": GridDecoder,
    "klt": KltDecoder,
}
"""Codec name -> decoder; all others decode whole."""


def decoder_for(codec: Codec, classes: int) -> TorchDecoder:
    """Return the decoder of a pool's codec."""
    return DECODERS.get(codec.name, WholeDecoder)(codec, classes)
