"""LPLD: batch lists by epoch, image ids of every epoch in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import PurePath
from typing import Any

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.records import BatchKey
from lpld_labels.interop.exporters.base import BatchExport, ExportFile, epoch_file
from lpld_labels.interop.exporters.batch_list import batch_items
from lpld_labels.interop.exporters.claims import Claim, pixel_problems, sampler_eras, shared_starts
from lpld_labels.interop.exporters.regular import complete_keys, is_regular
from lpld_labels.interop.label_folder import EPOCH_IDS
from lpld_labels.interop.programs import IMAGENET, NOT_NORMALISED, TINY

PROGRAM = "LPLD train_FKD_label_pruning_batch.py"
TRAINERS = {224: IMAGENET, 64: TINY}
CUT_OUT_TRAINERS = {224: NOT_NORMALISED}


class LpldExport(BatchExport):
    """Any pool; batches of a pruned one are laid out anew in epochs of equal length."""

    name = "lpld"
    summary = "epoch_E/batch_B.tar with sampler_indices_epoch.json"

    def files(self) -> list[ExportFile]:
        """Keep the keys of a whole run; lay out the batches of any other in epochs without gaps."""
        self._regular = is_regular(self.pool)
        if self._regular:
            return [ExportFile(key=key, path=epoch_file(*key)) for key in self.pool.keys]
        keys = complete_keys(self.pool)
        short = len(self.pool) - len(keys)
        if short and not self.options.drop_incomplete:
            raise LabelSourceError(
                f"{short} incomplete batches have no place among the others",
                where=self.pool.location,
                hint="leave them out with --drop-incomplete",
            )
        length = max(1, len(self.pool.images) // self.pool.header.batch_size)
        self.notes.append(f"batches numbered anew, {length} to an epoch: the pool is not a whole run")
        if short:
            self.notes.append(f"{short} incomplete batches left out")
        return [ExportFile(key=key, path=epoch_file(*divmod(n, length))) for n, key in enumerate(keys)]

    def content(self, key: BatchKey) -> list[Any]:
        """Return six items."""
        items = batch_items(self.pool.read_views(key), self.pool.images, self.pool.header.augmentation)
        return [*items, self.dense(key)]

    def id_files(self) -> dict[str, Iterator[str]]:
        """Return the ids of every epoch, as the program writes them."""
        return {EPOCH_IDS: self._ids()}

    def _ids(self) -> Iterator[str]:
        separator = "{"
        for folder, members in groupby(self.chosen, key=lambda file: PurePath(file.path).parts[0]):
            ids = [i for member in members for i in self.pool.read_views(member.key).images.tolist()]
            yield f'{separator}"{folder.removeprefix("epoch_")}": {json.dumps(ids)}'
            separator = ", "
        yield "}"

    def claims(self) -> list[Claim]:
        """Say it for each of the ways the trainer has to choose labels."""
        cut_out = self.pool.header.augmentation.cutout_fraction is not None
        pixels = pixel_problems(self.pool.header, CUT_OUT_TRAINERS if cut_out else TRAINERS)
        ids = "--prune_label --granularity"
        pool_size = f"int((1 - prune_ratio) x epochs x batches of epoch 0) must not exceed {len(self.chosen)}"
        return [
            Claim.make(PROGRAM, f"{ids} batch", pixels, needs=pool_size),
            Claim.make(
                PROGRAM,
                f"{ids} batch_to_epoch",
                [*pixels, *self._mistaken()],
                needs=f"it never shows the last batch of an epoch; {pool_size}",
            ),
            Claim.make(PROGRAM, f"{ids} epoch, or no --prune_label", [*pixels, *self._order_problems()]),
        ]

    def _mistaken(self) -> list[str]:
        """Return what goes wrong where the trainer puts epochs together from batches."""
        problems = []
        starts = [(int(self.pool.read_views(file.key).images[0]),) for file in self.chosen]
        shared = shared_starts(starts)
        if shared:
            problems.append(
                f"it knows a batch by its first image, and {shared} of {len(starts)} batches share theirs: "
                "two of them in one epoch get one's labels"
            )
        if sum(PurePath(file.path).parts[0] == "epoch_0" for file in self.chosen) == 1:
            problems.append("an epoch of one batch is none to it")
        return problems

    def _order_problems(self) -> list[str]:
        if not self._regular:
            return ["it draws whole epochs in its sampler's order, and the pool is not a whole run"]
        eras = sampler_eras(self.pool)
        if not eras:
            return ["it looks for a batch where its sampler would put it (build with --replayable-by lpld)"]
        return [] if "new" in eras else ["the image order is that of PyTorch < 1.11: train with that"]
