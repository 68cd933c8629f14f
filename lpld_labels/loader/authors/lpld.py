"""`lpld_loader`: pools for LPLD's train_FKD_label_pruning_batch.py, whatever its granularity and dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from lpld_labels.loader.authors.epochs import policy_epochs, stored_per_epoch
from lpld_labels.loader.authors.script_batches import Replayed
from lpld_labels.loader.authors.script_loader import ScriptLoader, ScriptOptions, check_arguments
from lpld_labels.loader.opening import Location, open_reader
from lpld_labels.pool.reader import PoolReader

if TYPE_CHECKING:
    from typing_extensions import Unpack

LpldSeen = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""(images, target, flip, coords, index); with cut-outs (images, target, coords, cutout, index)."""

LpldBatch = tuple[LpldSeen, torch.Tensor | None, float | None, list[int] | None, torch.Tensor]
"""(seen, mix_index, mix_lam, mix_bbox, soft_label), see `Replayed`.

images: float32 [B, 3, H, W], not mixed. soft_label: float32 [B, C].
"""


class LpldLoader(ScriptLoader):
    """Yields `LpldBatch` tuples. Made by `lpld_loader`."""

    def _batch(self, replayed: list[tuple[Replayed, torch.Tensor]]) -> LpldBatch:
        ((item, images),) = replayed
        return lpld_seen(item, images), item.mix_index, item.mix_lam, item.mix_bbox, self._labels(item)


def lpld_seen(item: Replayed, images: torch.Tensor) -> LpldSeen:
    """Return the five things the programs say of a batch's views."""
    if item.cutout is not None:
        return images, item.target, item.coords, item.cutout, item.image
    return images, item.target, item.flip, item.coords, item.image


def lpld_loader(
    pool: PoolReader | Location,
    images_dir: Location | None = None,
    *,
    batch_size: int,
    mix_type: str | None,
    **options: Unpack[ScriptOptions],
) -> LpldLoader:
    """Open a pool for LPLD's script; yields one `LpldBatch` per label batch.

    The script itself says what to play, by `set_epoch`, `set_batch` or `set_batch_list` on the loader's
    sampler and dataset. Batch n is the n-th of the pool in key order, which in a whole run is batch
    n % L of epoch n // L, as in the script. Epoch e is the e-th that is left, going round.

    batch_size, mix_type: what the script was told; refused unless they are the pool's.
    options: see `ScriptOptions`.
    """
    reader = open_reader(pool)
    check_arguments(reader, batch_size=batch_size, mix_type=mix_type)
    return LpldLoader(
        reader,
        images_dir,
        policy_epochs(reader, "epoch-by-epoch", seed=0, batches_per_epoch=None),
        numbered=np.arange(len(reader)),
        batches_per_epoch=stored_per_epoch(reader),
        **options,
    )
