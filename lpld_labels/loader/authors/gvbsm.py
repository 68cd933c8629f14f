"""`gvbsm_loader`: pools for G-VBSM's train_FKD.py and train_FKD_parallel.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader.authors.epochs import complete_per_epoch, complete_places, policy_epochs
from lpld_labels.loader.authors.script_batches import Replayed
from lpld_labels.loader.authors.script_loader import ScriptLoader, ScriptOptions, check_arguments
from lpld_labels.loader.opening import Location, open_reader
from lpld_labels.pool.reader import PoolReader

if TYPE_CHECKING:
    from typing_extensions import Unpack

GvbsmBatch = tuple[
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    list[torch.Tensor],
    torch.Tensor,
]
"""(images, target, flip, coords, mix_index, mix_lam, mix_bbox, soft_label), B rows each, see `Replayed`.

images: float32 [B, 3, H, W], not mixed. mix_lam: float64 [B]. mix_bbox: four int64 [B]. Both say the same
in every row, for the script has them collated row by row. soft_label: float32 [B, C].
"""


class GvbsmLoader(ScriptLoader):
    """Yields `GvbsmBatch` tuples. Made by `gvbsm_loader`."""

    def _batch(self, replayed: list[tuple[Replayed, torch.Tensor]]) -> GvbsmBatch:
        ((item, images),) = replayed
        rows = len(item.target)
        itself, nowhere = torch.arange(rows), [0, 0, 0, 0]
        strength = 1.0 if item.mix_lam is None else item.mix_lam
        return (
            images,
            item.target,
            item.flip,
            item.coords,
            itself if item.mix_index is None else item.mix_index,
            torch.full((rows,), strength, dtype=torch.float64),
            [torch.full((rows,), side, dtype=torch.int64) for side in item.mix_bbox or nowhere],
            self._labels(item),
        )


def gvbsm_loader(
    pool: PoolReader | Location,
    images_dir: Location | None = None,
    *,
    batch_size: int,
    mix_type: str | None,
    policy: str = "epoch-by-epoch",
    seed: int = 0,
    batches_per_epoch: int | None = None,
    **options: Unpack[ScriptOptions],
) -> GvbsmLoader:
    """Open a pool for G-VBSM's scripts; yields one `GvbsmBatch` per label batch.

    Every process gets all rows, also under torch.distributed: the parallel script takes its own part of
    each batch. Parameters mean the same as for `sre2l_loader`.
    """
    reader = open_reader(pool)
    check_arguments(reader, batch_size=batch_size, mix_type=mix_type)
    if reader.header.augmentation.mix == "mixup":
        raise InvalidArgumentError(
            "G-VBSM's scripts cannot mix as MixUp does: they take a box from every batch",
            where=reader.location,
            expected="a pool with CutMix or without mixing",
        )
    if "world_size" not in options:
        options["rank"], options["world_size"] = 0, 1
    return GvbsmLoader(
        reader,
        images_dir,
        policy_epochs(reader, policy, seed=seed, batches_per_epoch=batches_per_epoch),
        numbered=complete_places(reader),
        batches_per_epoch=batches_per_epoch or complete_per_epoch(reader),
        **options,
    )
