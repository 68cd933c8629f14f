"""How long an epoch is, for formats that store no list of image ids."""

from __future__ import annotations

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.interop.importers.base import ImportOptions, Notes
from lpld_labels.interop.importers.batch_format import check_image_count, first_readable
from lpld_labels.interop.importers.batch_list import BatchList
from lpld_labels.interop.label_folder import LabelFolder

_FREE_EPOCHS = 1000
_EPOCHS_PER_FOLDER = 16
"""Epochs that a folder may speak of: these, and so many for each that has files."""


def epoch_sizes(
    folder: LabelFolder, sample: BatchList, images: ImageTable, options: ImportOptions, notes: Notes
) -> tuple[int, dict[int, int]]:
    """Return the batch size and the rows of every epoch from 0 to the last one that has a file.

    An epoch is as long as the longest one found. Only the last may stop early: its end is not known.
    """
    lengths: dict[int, int] = {}
    for key in folder.by_epoch:
        lengths[key.epoch] = max(lengths.get(key.epoch, 0), key.batch + 1)
    _check_gaps(lengths, folder)
    longest = max(lengths.values())
    last_files = [path for key, path in folder.by_epoch.items() if key.batch == longest - 1]
    tail = first_readable(last_files)
    batch_size = max(sample.rows, tail.rows)
    seen = (longest - 1) * batch_size + tail.rows
    check_image_count(seen, batch_size, images, options, where=folder.root)
    final = max(lengths)
    counts = dict.fromkeys(range(final + 1), seen)
    notes.found.append(f"{final + 1} epochs of {longest} batches, {seen} images each")
    if lengths[final] < longest:
        counts[final] = lengths[final] * batch_size
        notes.odd.append(f"epoch {final}, the last, stops after {lengths[final]} of {longest} batches")
    return batch_size, counts


def _check_gaps(lengths: dict[int, int], folder: LabelFolder) -> None:
    """Refuse a lone folder of a far epoch: all epochs before it would be planned, and found missing."""
    most = _FREE_EPOCHS + _EPOCHS_PER_FOLDER * len(lengths)
    if max(lengths) >= most:
        raise LabelSourceError(
            f"epoch {max(lengths)} is far beyond the {len(lengths)} epochs that have files",
            where=folder.root,
            expected=f"epochs below {most}",
            hint="another run's files may be among them",
        )
