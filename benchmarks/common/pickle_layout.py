"""The layout of published label pools: one torch.save file per batch, a list of six.

ImageNet-1K: crop float32 [B, 4], flip bool [B], partner int64 [B], strength, box, fp16 logits [B, 1000].
Tiny-ImageNet: crop, flip, None, None, None, fp16 logits [B, 200].
ImageNet-21K-P: crop, cut-out float32 [B, 7], None, None, None, fp16 logits [B, 10450].
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpld_labels import LabelBatch


def save_pickle_batch(path: Path, batch: LabelBatch, *, side: int, safe: bool = False) -> int:
    """Write one batch the way published programs do; return the file's bytes.

    safe: the box as Python's integers, not NumPy's, which `torch.load(weights_only=True)` refuses.
    """
    fractions = torch.from_numpy(batch.crops.astype(np.float32) / side)
    status = torch.from_numpy(batch.flips)
    if batch.cutout is not None:
        parts = [batch.cutout.boxes.astype(np.float32), batch.cutout.fill.astype(np.float32)]
        status = torch.from_numpy(np.concatenate(parts, axis=1))
    mixing: list[Any] = [None, None, None]
    if batch.mix is not None:
        box = None if batch.mix.box is None else [edge if safe else np.int64(edge) for edge in batch.mix.box]
        mixing = [torch.from_numpy(batch.mix.partner.astype(np.int64)), batch.mix.strength, box]
    labels = torch.from_numpy(np.ascontiguousarray(batch.labels))
    torch.save([fractions, status, *mixing, labels], path)
    return path.stat().st_size
