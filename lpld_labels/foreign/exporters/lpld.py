"""LPLD: batch lists by epoch, image ids of every epoch in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import PurePath
from typing import Any

from lpld_labels.errors import LabelSourceError
from lpld_labels.foreign.exporters.base import ExportFile, ExportFormat, epoch_file
from lpld_labels.foreign.exporters.batch_list import batch_items
from lpld_labels.foreign.exporters.regular import complete_keys, is_regular
from lpld_labels.foreign.label_folder import EPOCH_IDS
from lpld_labels.format.records import BatchKey


class LpldExport(ExportFormat):
    """Any pool; batches of a pruned one are laid out anew in epochs of equal length."""

    name = "lpld"
    summary = "epoch_E/batch_B.tar with sampler_indices_epoch.json"

    def files(self) -> list[ExportFile]:
        """Keep the keys of a whole run; lay out the batches of any other in epochs without gaps."""
        if is_regular(self.pool):
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

    def id_files(self, files: list[ExportFile]) -> dict[str, Iterator[str]]:
        """Return the ids of every epoch, as the program writes them."""
        return {EPOCH_IDS: self._ids(files)}

    def _ids(self, files: list[ExportFile]) -> Iterator[str]:
        separator = "{"
        for folder, members in groupby(files, key=lambda file: PurePath(file.path).parts[0]):
            ids = [i for member in members for i in self.pool.read_views(member.key).images.tolist()]
            yield f'{separator}"{folder.removeprefix("epoch_")}": {json.dumps(ids)}'
            separator = ", "
        yield "}"
