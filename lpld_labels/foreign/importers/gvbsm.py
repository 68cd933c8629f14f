"""G-VBSM: batch lists by epoch that hold the ids of their images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lpld_labels.foreign.importers.base import ImportOptions, ImportPlan, Notes
from lpld_labels.foreign.importers.batch_format import BatchFormat, epoch_plan, files_by_epoch, first_readable
from lpld_labels.foreign.importers.batch_list import BatchList
from lpld_labels.foreign.importers.epochs import epoch_sizes
from lpld_labels.foreign.label_folder import LabelFolder
from lpld_labels.format.images import ImageTable

ENSEMBLE = "logits of several teachers, scaled to their mean norm, averaged"


class Gvbsm(BatchFormat):
    """Seven items: the last is the image id of every row."""

    name = "gvbsm"
    summary = "epoch_E/batch_B.tar with image ids in every batch (G-VBSM)"

    def files(self, folder: LabelFolder) -> Sequence[Path]:
        """Return the files below epoch folders."""
        return files_by_epoch(folder)

    def fits(self, folder: LabelFolder, sample: BatchList) -> bool:
        """Image ids in the list itself."""
        return sample.images is not None

    def plan(
        self, folder: LabelFolder, images: ImageTable, options: ImportOptions, notes: Notes
    ) -> ImportPlan:
        """Plan from the number of files; ids are read with the labels."""
        sample = first_readable(self.files(folder))
        batch_size, counts = epoch_sizes(folder, sample, images, options, notes)
        notes.assumed.append("several teachers, averaged as the G-VBSM program does")
        plan = epoch_plan(
            folder,
            sample=sample,
            batch_size=batch_size,
            images=images,
            options=options,
            notes=notes,
            counts=counts,
            ids=[(epoch, None) for epoch in counts],
        )
        header = replace(plan.target.header, ensemble=ENSEMBLE)
        return replace(plan, target=replace(plan.target, header=header))
