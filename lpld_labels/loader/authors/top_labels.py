"""Top-k labels as they are stored, for scripts that spread them over the classes themselves."""

from __future__ import annotations

import numpy as np
import torch

from lpld_labels.codecs import Payload
from lpld_labels.codecs.base import Parts
from lpld_labels.codecs.topk import TopKCodec


class TopLabels:
    """A decoder whose parts are values float32 [B, k] and classes int64 [B, k], in stored order."""

    def __init__(self, codec: TopKCodec, classes: int) -> None:
        self._codec = codec
        self._classes = classes

    def prepare(self, payload: Payload, rows: int) -> Parts:
        stored = self._codec.sparse(payload, rows=rows, classes=self._classes)
        return stored.values.astype(np.float32), stored.indices.astype(np.int64)

    def finish(self, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the pairs float32 [B, 2, k]: classes as numbers, then values, as FKD stores them."""
        values, classes = parts
        return torch.stack([classes.to(values.dtype), values], dim=1)
