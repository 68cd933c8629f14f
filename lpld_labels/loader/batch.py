"""What loaders yield."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lpld_labels.codecs.base import Parts
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.loader.decoders import TorchDecoder


class PoolBatch(NamedTuple):
    """A batch to train on. Its B rows may come from several label batches.

    images: float32 [B, 3, H, W], channels-last; mixed and normalised as the teacher saw them (or pixels
        0..255, see `pool_loader`).
    labels: float32 [B, C]; logits, or probabilities if the pool holds them or a temperature was given.
    targets: int64 [B]; class of each view's own image.
    partner_targets: int64 [B]; class of the image it was mixed with, its own where it was not.
    mix_strength: float32 [B]; weight of the view itself as it was drawn, 1 where it was not mixed.
    keys: int64 [B, 3]; epoch, batch and slot of each row in the pool.
    """

    images: torch.Tensor
    labels: torch.Tensor
    targets: torch.Tensor
    partner_targets: torch.Tensor
    mix_strength: torch.Tensor
    keys: torch.Tensor

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PoolBatch:
        """Return the batch with every tensor on a device."""
        return PoolBatch(*(tensor.to(device, non_blocking=non_blocking) for tensor in self))


@dataclass(frozen=True, kw_only=True, eq=False)
class UndecodedBatch:
    """One label batch for trainers with an image pipeline of their own.

    views: which images, crops, flips and mix (NumPy). targets: int64 [B], classes of the images.
    parts: the labels as the codec stores them, taken apart but not expanded; first dimension B.
    """

    views: ViewBatch
    targets: npt.NDArray[np.int64]
    parts: Parts
    decoder: TorchDecoder

    @property
    def key(self) -> BatchKey:
        return self.views.key

    def labels(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Decode to float32 [B, C] on a device."""
        return self.decoder.finish(tuple(to_tensor(part).to(device) for part in self.parts))


def to_tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
    """Return a tensor over the array's memory, or over a copy where that must not be written to."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
