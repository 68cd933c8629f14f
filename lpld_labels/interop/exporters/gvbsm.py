"""G-VBSM: batch lists by epoch that hold the ids of their images."""

from __future__ import annotations

from typing import Any

import numpy as np

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.records import BatchKey
from lpld_labels.interop.exporters.base import BatchExport, ExportFile, epoch_file
from lpld_labels.interop.exporters.batch_list import batch_items
from lpld_labels.interop.exporters.claims import Claim, pixel_problems
from lpld_labels.interop.exporters.regular import is_regular
from lpld_labels.interop.programs import CIFAR, IMAGENET

TRAINERS = {224: IMAGENET, 64: IMAGENET, 32: CIFAR}
"""Of the branches for ImageNet-1K, Tiny-ImageNet and CIFAR."""


class GvbsmExport(BatchExport):
    """Pools of whole epochs, in any order of images."""

    name = "gvbsm"
    summary = "epoch_E/batch_B.tar with image ids in every batch"

    def files(self) -> list[ExportFile]:
        """Keep every key; the trainer counts through the images, so every epoch must have them all."""
        pool = self.pool
        rows: dict[int, int] = {}
        for key, count in zip(pool.keys, pool.index.rows.tolist(), strict=True):
            rows[key.epoch] = rows.get(key.epoch, 0) + count
        if not is_regular(pool) or set(rows.values()) != {len(pool.images)}:
            raise LabelSourceError(
                "a pruned or incomplete pool has no place in this format",
                where=pool.location,
                expected=f"all {len(pool.images)} images in every epoch",
                hint="use --format lpld",
            )
        return [ExportFile(key=key, path=epoch_file(*key)) for key in pool.keys]

    def content(self, key: BatchKey) -> list[Any]:
        """Return seven items."""
        views = self.pool.read_views(key)
        items = batch_items(views, self.pool.images, self.pool.header.augmentation)
        return [*items, self.dense(key), views.images.astype(np.int64)]

    def claims(self) -> list[Claim]:
        """Every branch's trainer reads a folder in the same way."""
        augmentation = self.pool.header.augmentation
        problems = pixel_problems(self.pool.header, TRAINERS)
        if augmentation.cutout_fraction is not None:
            problems.append("it knows no cut-outs")
        if augmentation.mix == "none":
            problems.append("it cannot read batches that were not mixed")
        size, epochs = self.pool.header.batch_size, self.pool.manifest.counts.epochs
        needs = f"give --batch-size {size}, --epochs up to {epochs}, --mix-type {augmentation.mix}"
        return [Claim.make("G-VBSM train_FKD.py", "default", problems, needs=needs)]
