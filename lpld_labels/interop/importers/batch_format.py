"""What the formats with one file per batch have in common: one list, one way to read it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lpld_labels.errors import ImageMismatchError, InvalidBatchError, LabelFileError, LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import BatchKey, IntArray, ViewBatch, check_labels
from lpld_labels.interop.importers.base import (
    ImportOptions,
    ImportPlan,
    ImportTarget,
    LabelFormat,
    Notes,
    OnBad,
    Unit,
)
from lpld_labels.interop.importers.batch_list import BatchList, read_batch_list
from lpld_labels.interop.importers.guess import batch_target
from lpld_labels.interop.label_folder import LabelFolder
from lpld_labels.interop.pixels import crops_in_pixels, cutouts_in_pixels
from lpld_labels.pool.shard import EncodedBatch


class BatchFormat(LabelFormat):
    """A format whose files are batch lists (see batch_list.py)."""

    def recognises(self, folder: LabelFolder) -> bool:
        """Look at the layout first, then at the first file that can be read."""
        files = self.files(folder)
        return bool(files) and self.fits(folder, first_readable(files))

    def files(self, folder: LabelFolder) -> Sequence[Path]:
        """Return the batch files of this format's layout, which are those of epoch folders unless it says.

        First batches come first: those are complete if any is.
        """
        return [
            folder.by_epoch[key] for key in sorted(folder.by_epoch, key=lambda key: (key.batch, key.epoch))
        ]

    @abstractmethod
    def fits(self, folder: LabelFolder, sample: BatchList) -> bool:
        """Say whether a batch of a folder with the right layout is of this format."""

    def read(self, unit: Unit, target: ImportTarget, on_bad: OnBad) -> Iterator[EncodedBatch]:
        """Read one file: one batch."""
        (path,), (key,) = unit.files, unit.keys
        try:
            record = read_batch_list(path)
            _check_against(record, unit, target, path)
            images = self._images(record, unit, target, path)
            batch = _encoded(record, key, images, target, path)
        except (LabelFileError, InvalidBatchError) as error:
            on_bad(path, error)
        else:
            yield batch

    def _images(self, record: BatchList, unit: Unit, target: ImportTarget, path: Path) -> IntArray:
        if unit.images is not None:
            return unit.images
        if record.images is None:
            raise LabelFileError("batch holds no image ids", where=path, expected="item [6], integers [B]")
        check_ids(record.images, len(target.images), where=path)
        return record.images


def _check_against(record: BatchList, unit: Unit, target: ImportTarget, path: Path) -> None:
    """Refuse a batch that differs from the rest of its folder."""
    header, codec = target.header, target.codec
    top = codec.top_k
    columns = header.classes if top is None else top.k
    facts = {
        "rows": (unit.rows, record.rows),
        "columns of labels": (columns, record.labels.shape[1]),
        "type of labels": (_stored_dtype(target), record.labels.dtype),
        "top-k classes": (top is not None, record.classes is not None),
        "mixing": (header.augmentation.mix, record.mix_kind),
        "cut-outs": (header.augmentation.cutout_fraction is not None, record.cutouts is not None),
    }
    for what, (expected, got) in facts.items():
        if expected != got:
            hint = "batch sizes may differ only in the last batch of an epoch" if what == "rows" else ""
            raise LabelFileError(
                f"batch differs from the others: {what}",
                where=path,
                expected=expected,
                got=got,
                hint=hint or "this file belongs to another run",
            )
    if record.classes is not None and int(record.classes.max()) >= header.classes:
        raise LabelSourceError(
            f"labels speak of class {int(record.classes.max())}",
            where=path,
            expected=f"classes below {header.classes}",
            hint="give the number of classes with --classes",
        )
    box = record.mix.box if record.mix is not None else None
    if box is not None and max(box) > header.augmentation.output_height:
        raise LabelSourceError(
            "mix box reaches outside the view",
            where=path,
            expected=f"sides up to {header.augmentation.output_height}",
            got=list(box),
            hint="give the size of the views with --output-size",
        )


def _stored_dtype(target: ImportTarget) -> np.dtype[np.generic]:
    top = target.codec.top_k
    return np.dtype(target.codec.native_dtype) if top is None else top.value_dtype


def _encoded(
    record: BatchList, key: BatchKey, images: IntArray, target: ImportTarget, path: Path
) -> EncodedBatch:
    table = target.images
    cutout = None
    if record.cutouts is not None:
        cutout = cutouts_in_pixels(record.cutouts, target.header.augmentation.output_height, where=str(path))
    views = ViewBatch(
        key=key,
        images=images,
        crops=crops_in_pixels(
            record.coords, table.heights[images], table.widths[images], images, where=str(path)
        ),
        flips=record.flips,
        mix=record.mix,
        cutout=cutout,
    )
    check_labels(record.labels, key, images)
    top = target.codec.top_k
    if top is not None and record.classes is not None:
        encoded = top.encode_sparse(record.labels, record.classes, None, classes=target.header.classes)
    else:
        encoded = target.codec.encode(record.labels)
    return EncodedBatch.make(views, encoded)


def first_readable(files: Iterable[Path]) -> BatchList:
    """Return the first batch that can be read; raise the first error if none can."""
    problem: LabelFileError | None = None
    for path in files:
        try:
            return read_batch_list(path)
        except LabelFileError as error:
            problem = problem or error
    raise problem or LabelSourceError("no batch files")


def check_ids(ids: IntArray, images: int, *, where: Path) -> None:
    """Refuse image ids beyond the image folder."""
    if len(ids) and int(ids.max()) >= images:
        raise ImageMismatchError(
            f"labels speak of image {int(ids.max())}",
            where=where,
            expected=f"ids below the {images} images of the folder",
            hint="give the folder of the images that were labelled",
        )


def check_image_count(
    seen: int, batch_size: int, images: ImageTable, options: ImportOptions, *, where: Path
) -> None:
    """Refuse an image folder that cannot be the one an epoch of `seen` images was drawn from."""
    # A program that drops its last incomplete batch leaves out fewer images than a batch holds.
    if seen > len(images) or (len(images) - seen >= batch_size and not options.allow_extra_images):
        more = "; or say --allow-extra-images" if seen < len(images) else ""
        raise ImageMismatchError(
            "the image folder has another number of images than the labels",
            where=where,
            expected=f"{seen} images, as in one epoch of labels",
            got=len(images),
            hint=f"give the folder of the images that were labelled{more}",
        )


def epoch_plan(
    folder: LabelFolder,
    *,
    label_format: str,
    sample: BatchList,
    batch_size: int,
    images: ImageTable,
    options: ImportOptions,
    notes: Notes,
    counts: dict[int, int],
    ids: Callable[[], Iterable[tuple[int, IntArray | None]]],
    parameters: dict[str, Any] | None = None,
) -> ImportPlan:
    """Plan a folder of epochs.

    counts: rows of every epoch. ids: gives (epoch, image ids int32 [rows], or None where the files say them)
    for at least these epochs, in order; called whenever the plan is gone through, and read epoch by epoch.
    """
    target = batch_target(
        sample,
        label_format=label_format,
        batch_size=batch_size,
        images=images,
        options=options,
        notes=notes,
    )
    expected = {epoch: -(-rows // batch_size) for epoch, rows in counts.items()}
    extra = [key for key in folder.by_epoch if key.batch >= expected.get(key.epoch, 0)]
    if extra:
        raise LabelSourceError(
            f"{len(extra)} files have no place in their epoch, the first is {extra[0]}",
            where=folder.by_epoch[extra[0]],
            expected=f"{expected.get(extra[0].epoch, 0)} batches of {batch_size} rows in this epoch",
            hint="another run's files may be among them, or the image folder is the wrong one",
        )

    def units() -> Iterator[Unit]:
        for epoch, order in ids():
            if epoch not in expected:
                continue
            for batch in range(expected[epoch]):
                key = BatchKey(epoch, batch)
                first, last = batch * batch_size, min((batch + 1) * batch_size, counts[epoch])
                part = None if order is None else order[first:last]
                yield Unit(files=(_place(folder, key),), keys=(key,), images=part, rows=last - first)

    planned = [BatchKey(epoch, batch) for epoch, count in expected.items() for batch in range(count)]
    return ImportPlan(
        target=target,
        batches=len(planned),
        units=units,
        missing=tuple(_place(folder, key) for key in planned if key not in folder.by_epoch),
        parameters=parameters or {},
    )


def _place(folder: LabelFolder, key: BatchKey) -> Path:
    """Return where a batch is, or where it should be."""
    return folder.by_epoch.get(key) or folder.root / f"epoch_{key.epoch}" / f"batch_{key.batch}.tar"
