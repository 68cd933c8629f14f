"""`fkd_loader`: pools for FKD's train_FKD.py and train_ViT_FKD.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader.authors.epochs import CropEpochs
from lpld_labels.loader.authors.script_batches import Replayed
from lpld_labels.loader.authors.script_loader import ScriptLoader, ScriptOptions
from lpld_labels.loader.authors.top_labels import TopLabels
from lpld_labels.loader.opening import Location, open_reader
from lpld_labels.pool.reader import PoolReader

if TYPE_CHECKING:
    from typing_extensions import Unpack

FkdBatch = tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]
"""(images, target, soft_label), each a list with one tensor per crop, B images in each.

images: float32 [B, 3, H, W]. target: int64 [B]. soft_label: float32 [B, 2, k], classes and probabilities,
of a top-k pool; else probabilities float32 [B, C].
"""


class FkdLoader(ScriptLoader):
    """Yields `FkdBatch` tuples. Made by `fkd_loader`."""

    crops: int
    logits: bool

    def _batch(self, replayed: list[tuple[Replayed, torch.Tensor]]) -> FkdBatch:
        groups = len(replayed) // self.crops
        by_crop = [replayed[first : first + groups] for first in range(0, len(replayed), groups)]
        return (
            [torch.cat([images for _, images in crop]) for crop in by_crop],
            [torch.cat([item.target for item, _ in crop]) for crop in by_crop],
            [torch.cat([self._soft(item) for item, _ in crop]) for crop in by_crop],
        )

    def _soft(self, item: Replayed) -> torch.Tensor:
        labels = self._labels(item)
        return labels.softmax(dim=1) if self.logits else labels


def fkd_loader(
    pool: PoolReader | Location,
    images_dir: Location | None = None,
    *,
    batch_size: int,
    num_crops: int,
    seed: int = 0,
    **options: Unpack[ScriptOptions],
) -> FkdLoader:
    """Open a pool for FKD's scripts; yields `FkdBatch`es of batch_size images with num_crops crops each.

    Every epoch shows each group of images once (a label batch holds one crop of a group) with as many
    crops, in an order and a choice that depend on the seed and the epoch only. The script draws crops
    for every image on its own, here they are drawn for a group.

    batch_size: images in a step, the size of the pool's batches or a multiple of it.
    options: see `ScriptOptions`. Processes share the steps of an epoch.
    """
    reader = open_reader(pool)
    header = reader.header
    if batch_size < 1 or batch_size % header.batch_size or num_crops < 1:
        raise InvalidArgumentError(
            "the script's batches cannot be made of the pool's",
            where=reader.location,
            expected=f"a multiple of {header.batch_size} images and at least one crop",
            got=f"{batch_size} images, {num_crops} crops",
            hint="import again with --batch-size: the script's, divided by its --num_crops",
        )
    if header.augmentation.mix != "none":
        raise InvalidArgumentError(
            "FKD's scripts mix labels themselves, and these belong to mixed images",
            where=reader.location,
            expected="a pool without CutMix and MixUp",
            got=header.augmentation.mix,
        )
    groups = batch_size // header.batch_size
    codec = reader.codec.top_k if header.label_kind == "probabilities" else None
    loader = FkdLoader(
        reader,
        images_dir,
        CropEpochs(numbers=reader.index.batches, seed=seed, groups=groups, crops=num_crops),
        numbered=np.arange(len(reader)),
        batches_per_epoch=-(-len(np.unique(reader.index.batches)) // groups),
        together=groups * num_crops,
        short_anywhere=True,
        decoder=None if codec is None else TopLabels(codec, reader.classes),
        **options,
    )
    loader.crops = num_crops
    loader.logits = header.label_kind == "logits"
    return loader
