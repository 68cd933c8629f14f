"""LPQLD (pruning and quantisation): batch lists numbered through, ids of every batch in a JSON file.

Coordinates are float16, partners and boxes uint8, labels the k largest logits in descending order.
A folder has no epochs. They are found again from the ids: an image is seen once an epoch, so a new
epoch starts with the first batch that holds an image a second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import BatchKey
from lpld_labels.interop.importers.base import ImportOptions, ImportPlan, Notes, Unit
from lpld_labels.interop.importers.batch_format import (
    BatchFormat,
    check_ids,
    check_image_count,
    first_readable,
)
from lpld_labels.interop.importers.batch_list import BatchList
from lpld_labels.interop.importers.guess import batch_target
from lpld_labels.interop.label_folder import BATCH_IDS, LabelFolder
from lpld_labels.interop.pixels import exact_sizes
from lpld_labels.interop.sampler_json import SamplerIds


class Lpqld(BatchFormat):
    """A flat folder; labels may also be whole rows."""

    name = "lpqld"
    summary = "batch_N.tar with sampler_indices_batch.json, top-k labels (LPQLD)"

    def files(self, folder: LabelFolder) -> Sequence[Path]:
        """Return the numbered files."""
        return list(folder.numbered.values())

    def fits(self, folder: LabelFolder, sample: BatchList) -> bool:
        """The layout is enough."""
        return sample.images is None

    def plan(
        self, folder: LabelFolder, images: ImageTable, options: ImportOptions, notes: Notes
    ) -> ImportPlan:
        """Take image ids from the JSON file and cut the row of batches into epochs."""
        if folder.batch_ids is None:
            raise LabelSourceError(
                "image ids are missing", where=folder.root, expected=BATCH_IDS, hint="copy it with the labels"
            )
        stored = SamplerIds(folder.batch_ids)
        nameless = sorted(set(folder.numbered) - set(stored.keys))
        if nameless:
            raise LabelSourceError(
                f"no image ids for batch {nameless[0]}", where=stored.path, hint="restore this file"
            )
        sample = first_readable(self.files(folder))
        batch_size = max(stored.count(number) for number in stored.keys)
        keys = _epochs(stored, len(images))
        seen = max(sum(stored.count(n) for n in numbers) for numbers in _by_epoch(keys).values())
        check_image_count(seen, batch_size, images, options, where=stored.path)
        notes.found.append(f"{len(keys)} batches, image ids stored for each")
        notes.assumed.append(f"{len(_by_epoch(keys))} epochs: one ends where an image would come again")
        _note_coarse_crops(sample, images, notes)
        target = batch_target(
            sample,
            label_format=self.name,
            batch_size=batch_size,
            images=images,
            options=options,
            notes=notes,
        )
        missing = [n for n in keys if n not in folder.numbered]

        def units() -> Iterator[Unit]:
            for number, key in keys.items():
                ids = stored.ids(number)
                path = folder.root / f"batch_{number}.tar"
                yield Unit(files=(path,), keys=(key,), images=ids, rows=len(ids))

        return ImportPlan(
            target=target,
            batches=len(keys),
            units=units,
            missing=tuple(folder.root / f"batch_{number}.tar" for number in missing),
        )


def _epochs(stored: SamplerIds, images: int) -> dict[int, BatchKey]:
    """Return the key of every numbered batch."""
    keys = {}
    epoch = batch = 0
    seen = np.zeros(images, np.bool_)
    for number in stored.keys:
        ids = stored.ids(number)
        check_ids(ids, images, where=stored.path)
        if len(ids) == 0 or len(np.unique(ids)) != len(ids):
            raise LabelSourceError(f"batch {number} is empty or names an image twice", where=stored.path)
        if seen[ids].any():
            epoch, batch = epoch + 1, 0
            seen[:] = False
        seen[ids] = True
        keys[number] = BatchKey(epoch, batch)
        batch += 1
    return keys


def _by_epoch(keys: dict[int, BatchKey]) -> dict[int, list[int]]:
    numbers: dict[int, list[int]] = {}
    for number, key in keys.items():
        numbers.setdefault(key.epoch, []).append(number)
    return numbers


def _note_coarse_crops(sample: BatchList, images: ImageTable, notes: Notes) -> None:
    """Say so where stored fractions cannot tell the pixels of an image apart."""
    largest = max(int(images.heights.max()), int(images.widths.max()))
    if largest > exact_sizes(sample.coords.dtype):
        notes.odd.append(
            f"{sample.coords.dtype} crops cannot tell all pixels of a {largest} pixel image apart: "
            "crops of the largest images may be off by a pixel"
        )
