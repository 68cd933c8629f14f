"""SRe2L: batch lists by epoch. Image ids are not stored; a trainer draws them again."""

from __future__ import annotations

from typing import Any

import numpy as np

from lpld_labels.errors import LabelSourceError
from lpld_labels.foreign.exporters.base import ExportFile, ExportFormat, epoch_file
from lpld_labels.foreign.exporters.batch_list import batch_items
from lpld_labels.foreign.exporters.regular import is_regular
from lpld_labels.foreign.sampler import DEFAULT_SEED, ERAS, Era, epoch_orders
from lpld_labels.format.records import BatchKey


class Sre2lExport(ExportFormat):
    """Only pools whose images come in RandomSampler's order."""

    name = "sre2l"
    summary = "epoch_E/batch_B.tar without image ids"

    def files(self) -> list[ExportFile]:
        """Keep every key; refuse pools whose ids a trainer would not draw again."""
        if not is_regular(self.pool):
            raise LabelSourceError(
                "a pruned or incomplete pool has no place in this format",
                where=self.pool.location,
                expected="every batch of every epoch",
                hint="use --format lpld, which stores image ids",
            )
        fitting = [era for era in ERAS if self._drawn_by(era)]
        if not fitting:
            raise LabelSourceError(
                "this format stores no image ids, and the pool's are not those it implies",
                where=self.pool.location,
                expected=f"the order of RandomSampler with seed {DEFAULT_SEED}",
                hint="use --format lpld, which stores image ids",
            )
        if len(fitting) < len(ERAS):
            version = ">= 1.11" if fitting[0] == "new" else "< 1.11"
            self.notes.append(f"image ids are those that PyTorch {version} draws; train with that")
        return [ExportFile(key=key, path=epoch_file(*key)) for key in self.pool.keys]

    def content(self, key: BatchKey) -> list[Any]:
        """Return six items."""
        items = batch_items(self.pool.read_views(key), self.pool.images, self.pool.header.augmentation)
        return [*items, self.dense(key)]

    def _drawn_by(self, era: Era) -> bool:
        size = self.pool.header.batch_size
        orders = epoch_orders(len(self.pool.images), era=era)
        epoch, order = -1, np.empty(0, np.int32)
        for key in self.pool.keys:
            if key.epoch != epoch:
                epoch, order = key.epoch, next(orders)
            expected = order[key.batch * size : (key.batch + 1) * size]
            found = self.pool.read_views(key).images
            if not np.array_equal(found, expected[: len(found)]):
                return False
        return True
