"""Label decoding in two steps: `prepare` in a worker, `finish` where the student trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from lpld_labels.codecs import Codec, Payload
from lpld_labels.codecs.base import Parts


class TorchDecoder(Protocol):
    """Decodes the labels of one pool."""

    def prepare(self, payload: Payload, rows: int) -> Parts:
        """Return what `finish` needs, each array with `rows` rows."""

    def finish(self, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return labels float32 [n, C] on the parts' device, from the same n rows of every part."""


@dataclass(frozen=True, eq=False)
class CodecDecoder:
    """Decodes as the pool's codec does."""

    codec: Codec
    classes: int

    def prepare(self, payload: Payload, rows: int) -> Parts:
        return self.codec.split(payload, rows=rows, classes=self.classes)

    def finish(self, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.codec.join(parts)


def decoder_for(codec: Codec, classes: int) -> TorchDecoder:
    """Return the decoder of a pool's codec."""
    return CodecDecoder(codec, classes)
