"""G-VBSM: batch lists by epoch that hold the ids of their images.

Labels come from several teachers. How their logits became one, and the normalisation, differ between
the published branches and are stored nowhere (see programs.py).
"""

from __future__ import annotations

from dataclasses import replace

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import ENSEMBLE_WORDS, EnsembleRule, PoolHeader
from lpld_labels.interop.importers.base import ImportOptions, ImportPlan, Notes
from lpld_labels.interop.importers.batch_format import BatchFormat, epoch_plan, first_readable
from lpld_labels.interop.importers.batch_list import BatchList
from lpld_labels.interop.importers.epochs import epoch_sizes
from lpld_labels.interop.label_folder import LabelFolder
from lpld_labels.interop.programs import published_program

IMAGENET_SIDE = 224


class Gvbsm(BatchFormat):
    """Seven items: the last is the image id of every row."""

    name = "gvbsm"
    summary = "epoch_E/batch_B.tar with image ids in every batch (G-VBSM)"

    def fits(self, folder: LabelFolder, sample: BatchList) -> bool:
        """Image ids in the list itself."""
        return sample.images is not None

    def plan(
        self, folder: LabelFolder, images: ImageTable, options: ImportOptions, notes: Notes
    ) -> ImportPlan:
        """Plan from the number of files; ids are read with the labels."""
        sample = first_readable(self.files(folder))
        batch_size, counts = epoch_sizes(folder, sample, images, options, notes)
        plan = epoch_plan(
            folder,
            label_format=self.name,
            sample=sample,
            batch_size=batch_size,
            images=images,
            options=options,
            notes=notes,
            counts=counts,
            ids=lambda: ((epoch, None) for epoch in counts),
        )
        rule = _rule(plan.target.header, options, notes)
        _note_mixup(plan.target.header, notes)
        header = replace(plan.target.header, ensemble=ENSEMBLE_WORDS[rule])
        return replace(plan, target=replace(plan.target, header=header))


def _rule(header: PoolHeader, options: ImportOptions, notes: Notes) -> EnsembleRule:
    """Return how the teachers' logits became one label: as told, else as the published branch does."""
    if options.ensemble is not None:
        return options.ensemble
    program = published_program(Gvbsm.name, classes=header.classes, side=header.augmentation.output_height)
    if program is None or program.ensemble is None:
        raise LabelSourceError(
            "cannot tell how the labels of several teachers were made one",
            expected="classes and image size of a published branch of G-VBSM",
            got=f"{header.classes} classes, {header.augmentation.output_height} pixels",
            hint="give --ensemble average (its branches for small images) or norm-scaled (ImageNet-1K)",
        )
    notes.assumed.append(
        f"logits of several teachers, {ENSEMBLE_WORDS[program.ensemble]}, as {program.name} does (--ensemble)"
    )
    return program.ensemble


def _note_mixup(header: PoolHeader, notes: Notes) -> None:
    """Say what the branches for small images do with MixUp: they label the views before mixing them."""
    if header.augmentation.mix == "mixup" and header.augmentation.output_height < IMAGENET_SIDE:
        notes.odd.append(
            "G-VBSM's branches for small images label views before MixUp blends them, and train on the "
            "blended ones: a teacher will not confirm these labels"
        )
