"""SRe2L: batch lists by epoch. Image ids are not stored; a trainer draws them again."""

from __future__ import annotations

from typing import Any

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.records import BatchKey
from lpld_labels.interop.exporters.base import BatchExport, ExportFile, epoch_file
from lpld_labels.interop.exporters.batch_list import batch_items
from lpld_labels.interop.exporters.claims import Claim, pixel_problems, sampler_eras
from lpld_labels.interop.exporters.regular import is_regular
from lpld_labels.interop.programs import IMAGENET
from lpld_labels.interop.sampler import DEFAULT_SEED, ERAS

TRAINERS = {224: IMAGENET}


class Sre2lExport(BatchExport):
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
        fitting = sampler_eras(self.pool)
        if not fitting:
            raise LabelSourceError(
                "this format stores no image ids, and the pool's are not those it implies",
                where=self.pool.location,
                expected=f"the order of RandomSampler with seed {DEFAULT_SEED}",
                hint="use --format lpld, which stores image ids, or build with --replayable-by sre2l",
            )
        if len(fitting) < len(ERAS):
            version = ">= 1.11" if fitting[0] == "new" else "< 1.11"
            self.notes.append(f"image ids are those that PyTorch {version} draws; train with that")
        return [ExportFile(key=key, path=epoch_file(*key)) for key in self.pool.keys]

    def content(self, key: BatchKey) -> list[Any]:
        """Return six items."""
        items = batch_items(self.pool.read_views(key), self.pool.images, self.pool.header.augmentation)
        return [*items, self.dense(key)]

    def claims(self) -> list[Claim]:
        """SRe2L's trainer has one way to read a folder."""
        header = self.pool.header
        problems = pixel_problems(header, TRAINERS)
        if header.augmentation.cutout_fraction is not None:
            problems.append("it knows no cut-outs")
        epochs = self.pool.manifest.counts.epochs
        needs = (
            f"give --fkd-path with a slash at its end, --batch-size {header.batch_size}, "
            f"--epochs up to {epochs}{_mix(header.augmentation.mix)}"
        )
        return [Claim.make("SRe2L train_FKD.py", "default", problems, needs=needs)]


def _mix(mix: str) -> str:
    return "" if mix == "none" else f", --mix-type {mix}"
