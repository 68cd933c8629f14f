"""LPLD (label pruning): batch lists by epoch, with the image ids of every epoch in a JSON file.

The program may label one epoch more than asked for and stop within the last one. Its ImageNet-21K
variant stores cut-outs in place of flips; nothing else differs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import IntArray
from lpld_labels.interop.importers.base import ImportOptions, ImportPlan, Notes
from lpld_labels.interop.importers.batch_format import (
    BatchFormat,
    check_ids,
    check_image_count,
    epoch_plan,
    first_readable,
)
from lpld_labels.interop.importers.batch_list import BatchList
from lpld_labels.interop.label_folder import EPOCH_IDS, LabelFolder
from lpld_labels.interop.sampler_json import SamplerIds


class Lpld(BatchFormat):
    """ImageNet-1K and Tiny-ImageNet."""

    name = "lpld"
    summary = "epoch_E/batch_B.tar with sampler_indices_epoch.json (LPLD)"
    cut_out = False

    def fits(self, folder: LabelFolder, sample: BatchList) -> bool:
        """Six items, and ids in a file of their own."""
        plain = sample.images is None and sample.classes is None
        return plain and folder.epoch_ids is not None and (sample.cutouts is not None) == self.cut_out

    def plan(
        self, folder: LabelFolder, images: ImageTable, options: ImportOptions, notes: Notes
    ) -> ImportPlan:
        """Take image ids from the JSON file; every list must fit the files and the image folder."""
        if folder.epoch_ids is None:
            raise LabelSourceError(
                "image ids are missing", where=folder.root, expected=EPOCH_IDS, hint="or use --format sre2l"
            )
        stored = SamplerIds(folder.epoch_ids)
        sample = first_readable(self.files(folder))
        labelled = {key.epoch for key in folder.by_epoch}
        nameless = sorted(labelled - set(stored.keys))
        if nameless:
            raise LabelSourceError(
                f"no image ids for epoch {nameless[0]}", where=stored.path, hint="restore this file"
            )
        # Ids of later epochs are the program's habit; an epoch missing before the last is a loss.
        counts = {epoch: stored.count(epoch) for epoch in stored.keys if epoch <= max(labelled)}
        batch_size = min(sample.rows, max(counts.values()))
        check_image_count(max(counts.values()), batch_size, images, options, where=stored.path)
        notes.found.append(f"{len(counts)} epochs, image ids stored for each")
        if len(stored.keys) > len(counts):
            notes.odd.append(f"image ids of {len(stored.keys) - len(counts)} epochs that have no labels")
        short = sum(rows < max(counts.values()) for rows in counts.values())
        if short:
            notes.odd.append(f"{short} epochs are shorter than the others")

        def ids() -> Iterator[tuple[int, IntArray]]:
            repeating = []
            for epoch in counts:
                order = stored.ids(epoch)
                check_ids(order, len(images), where=stored.path)
                if len(order) and int(np.bincount(order).max()) > 1:
                    repeating.append(epoch)
                yield epoch, order
            _note_repeating(repeating, notes)

        return epoch_plan(
            folder,
            label_format=self.name,
            sample=sample,
            batch_size=batch_size,
            images=images,
            options=options,
            notes=notes,
            counts=counts,
            ids=ids,
        )


def _note_repeating(epochs: list[int], notes: Notes) -> None:
    """Say which epochs show an image more than once, however often the plan is gone through."""
    if not epochs:
        return
    which = f"epoch {epochs[0]} shows"
    if len(epochs) > 1:
        which = f"{len(epochs)} epochs, the first {epochs[0]}, show"
    told = f"{which} an image more than once, as epochs of a pruned pool do"
    if told not in notes.odd:
        notes.odd.append(told)
