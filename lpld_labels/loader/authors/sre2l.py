"""`sre2l_loader`: pools for SRe2L's validate/train_FKD.py and scripts that take batches apart like it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lpld_labels.loader.authors.epochs import complete_per_epoch, complete_places, policy_epochs
from lpld_labels.loader.authors.script_batches import Replayed
from lpld_labels.loader.authors.script_loader import ScriptLoader, ScriptOptions, check_arguments
from lpld_labels.loader.opening import Location, open_reader
from lpld_labels.pool.reader import PoolReader

if TYPE_CHECKING:
    from typing_extensions import Unpack

Sre2lBatch = tuple[
    tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    torch.Tensor | None,
    float | None,
    list[int] | None,
    torch.Tensor,
]
"""((images, target, flip, coords), mix_index, mix_lam, mix_bbox, soft_label), see `Replayed`.

images: float32 [B, 3, H, W], not mixed. soft_label: float32 [B, C].
"""


class Sre2lLoader(ScriptLoader):
    """Yields `Sre2lBatch` tuples. Made by `sre2l_loader`."""

    def _batch(self, replayed: list[tuple[Replayed, torch.Tensor]]) -> Sre2lBatch:
        ((item, images),) = replayed
        seen = (images, item.target, item.flip, item.coords)
        return seen, item.mix_index, item.mix_lam, item.mix_bbox, self._labels(item)


def sre2l_loader(
    pool: PoolReader | Location,
    images_dir: Location | None = None,
    *,
    batch_size: int,
    mix_type: str | None,
    policy: str = "epoch-by-epoch",
    seed: int = 0,
    batches_per_epoch: int | None = None,
    **options: Unpack[ScriptOptions],
) -> Sre2lLoader:
    """Open a pool for SRe2L's script; yields one `Sre2lBatch` per label batch.

    batch_size, mix_type: what the script was told; refused unless they are the pool's.
    policy: epoch-by-epoch plays the stored epoch that the script names, to the row what it plays of its
        own folder, and goes round where fewer are stored. For a pruned pool take "batches". All are
        described in `lpld_labels.loader.sampling`; see `policy_epochs` for short batches.
    seed, batches_per_epoch: of the policy.
    options: see `ScriptOptions`.
    """
    reader = open_reader(pool)
    check_arguments(reader, batch_size=batch_size, mix_type=mix_type)
    return Sre2lLoader(
        reader,
        images_dir,
        policy_epochs(reader, policy, seed=seed, batches_per_epoch=batches_per_epoch),
        numbered=complete_places(reader),
        batches_per_epoch=batches_per_epoch or complete_per_epoch(reader),
        **options,
    )
