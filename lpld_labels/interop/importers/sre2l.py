"""SRe2L and its kin (CDA, CV-DD, FADRM): batch lists by epoch, and no image ids.

Ids come from a RandomSampler over the sorted image folder (see sampler.py). Which PyTorch drew them
is told, or found by evidence in the labels (see evidence.py); either way it stays an assumption until
a teacher confirms it.
"""

from __future__ import annotations

from collections.abc import Iterator

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import IntArray
from lpld_labels.interop.importers.base import ImportOptions, ImportPlan, Notes
from lpld_labels.interop.importers.batch_format import BatchFormat, epoch_plan, first_readable
from lpld_labels.interop.importers.batch_list import BatchList
from lpld_labels.interop.importers.epochs import epoch_sizes
from lpld_labels.interop.importers.evidence import gather_evidence
from lpld_labels.interop.label_folder import LabelFolder
from lpld_labels.interop.sampler import ERAS, Era, epoch_orders

ERA_NAMES: dict[Era, str] = {"new": "PyTorch >= 1.11", "old": "PyTorch < 1.11"}


class Sre2l(BatchFormat):
    """Six items, and nothing else in the folder."""

    name = "sre2l"
    summary = "epoch_E/batch_B.tar without image ids (SRe2L, CDA, CV-DD, FADRM)"

    def fits(self, folder: LabelFolder, sample: BatchList) -> bool:
        """No ids in the list, none beside it."""
        return sample.images is None and sample.classes is None and folder.epoch_ids is None

    def plan(
        self, folder: LabelFolder, images: ImageTable, options: ImportOptions, notes: Notes
    ) -> ImportPlan:
        """Rebuild the order of images for the era that is given or that fits the labels."""
        sample = first_readable(self.files(folder))
        batch_size, counts = epoch_sizes(folder, sample, images, options, notes)
        era = _chosen_era(folder, batch_size, images, options, notes)

        def ids() -> Iterator[tuple[int, IntArray]]:
            orders = epoch_orders(len(images), era=era, seed=options.sampler_seed)
            yield from zip(counts, orders, strict=False)

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
            parameters={"torch_era": era, "sampler_seed": options.sampler_seed},
        )


def _chosen_era(
    folder: LabelFolder, batch_size: int, images: ImageTable, options: ImportOptions, notes: Notes
) -> Era:
    evidence = gather_evidence(folder, batch_size, len(images), seed=options.sampler_seed)
    seeded = f"RandomSampler, seed {options.sampler_seed}"
    if options.torch_era != "auto":
        era = options.torch_era
        notes.assumed.append(f"image ids of {seeded}, {ERA_NAMES[era]}, as told (--torch-era)")
        if evidence is not None and not evidence.supports(era):
            notes.odd.append(f"the labels do not support these image ids: {evidence.sentence()}")
        return era
    if evidence is None:
        notes.assumed.append(
            f"image ids of {seeded}, {ERA_NAMES['new']}; the folder is too small to tell (--torch-era)"
        )
        return "new"
    best = max(ERAS, key=lambda candidate: evidence.agreement[candidate])
    if not evidence.supports(best):
        raise LabelSourceError(
            "no known order of image ids fits the labels",
            where=folder.root,
            expected="labels of the same image to agree between epochs 0 and 1",
            got=evidence.sentence(),
            hint="check --images and --sampler-seed, or force an order with --torch-era",
        )
    notes.assumed.append(
        f"image ids of {seeded}, {ERA_NAMES[best]}: {evidence.sentence()}; `verify --teacher` can prove it"
    )
    return best
