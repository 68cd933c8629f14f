"""FKD: one file per image, with many crops of it (see fkd_file.py).

Nothing is mixed, so the batches are ours to choose: batch b of epoch c holds crop c of the b-th group
of images. Labels are probabilities after softmax; what the classes that were left out had together is
known, and spread evenly over them, as FKD's trainer does (marginal smoothing). Hard labels are
probability 1 for one class.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from lpld_labels.codecs import EncodedLabels
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.errors import ImageMismatchError, LabelFileError, LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation, PoolHeader
from lpld_labels.format.records import BatchKey, IntArray, LabelArray, ViewBatch
from lpld_labels.interop.importers.base import (
    ImportOptions,
    ImportPlan,
    ImportTarget,
    LabelFormat,
    Notes,
    OnBad,
    Unit,
)
from lpld_labels.interop.importers.fkd_file import ImageCrops, read_image_crops
from lpld_labels.interop.importers.guess import PROGRAM_FLIPS, likely_classes, output_size, teachers
from lpld_labels.interop.label_folder import LabelFolder
from lpld_labels.interop.pixels import crops_in_pixels
from lpld_labels.interop.programs import published_program
from lpld_labels.pool.shard import EncodedBatch


class Fkd(LabelFormat):
    """Labels by image: probabilities of the k most likely classes, or one class."""

    name = "fkd"
    summary = "[[NAME/]train/]CLASS/IMAGE.tar, crops and labels by image (FKD)"

    def recognises(self, folder: LabelFolder) -> bool:
        """The layout is enough."""
        return bool(folder.by_image)

    def plan(
        self, folder: LabelFolder, images: ImageTable, options: ImportOptions, notes: Notes
    ) -> ImportPlan:
        """Match files with images by class folder and name."""
        if not folder.by_image:
            raise LabelSourceError("no labels by image", where=folder.root, expected=self.summary)
        files = _files_of_images(folder, images, options, notes)
        sample = _first_readable(files)
        crops, kept = sample.classes.shape
        target = _target(sample, images, options, notes)
        groups = [files[i : i + options.batch_size] for i in range(0, len(files), options.batch_size)]
        labels = "hard labels" if sample.kind == "hard" else f"top {kept} probabilities"
        notes.found.append(f"{len(files)} images with {crops} crops each, {labels}")
        notes.assumed.append(
            f"batches of {options.batch_size} images (--batch-size); epoch c holds crop c of every image"
        )

        def units() -> Iterator[Unit]:
            for batch, group in enumerate(groups):
                yield Unit(
                    files=tuple(path for _, path in group),
                    keys=tuple(BatchKey(crop, batch) for crop in range(crops)),
                    images=np.array([index for index, _ in group], np.int32),
                    rows=len(group),
                )

        return ImportPlan(
            target=target,
            batches=crops * len(groups),
            units=units,
            parameters={"label_type": sample.kind, "temperature": options.temperature},
        )

    def read(self, unit: Unit, target: ImportTarget, on_bad: OnBad) -> Iterator[EncodedBatch]:
        """Read a group of images; yield one batch per crop."""
        good: list[ImageCrops] = []
        rows: list[int] = []
        images = unit.images if unit.images is not None else np.empty(0, np.int32)
        for path, index in zip(unit.files, images.tolist(), strict=True):
            try:
                good.append(_checked(path, target, crops=len(unit.keys)))
                rows.append(index)
            except LabelFileError as error:
                on_bad(path, error)
        if not good:
            return
        which = np.array(rows, np.int32)
        heights, widths = target.images.heights[which], target.images.widths[which]
        for number, key in enumerate(unit.keys):
            coords = np.stack([crops.coords[number] for crops in good])
            views = ViewBatch(
                key=key,
                images=which,
                crops=crops_in_pixels(
                    coords, heights, widths, which, where=f"{unit.files[0].parent}, crop {number}"
                ),
                flips=np.stack([crops.flips[number] for crops in good]),
            )
            values = np.stack([crops.values[number] for crops in good])
            classes = np.stack([crops.classes[number] for crops in good])
            yield EncodedBatch.make(views, _encode(values, classes, target))


def _encode(values: LabelArray, indices: IntArray, target: ImportTarget) -> EncodedLabels:
    codec = target.codec.top_k
    if codec is None:
        raise TypeError("FKD labels are stored as top-k")
    classes = target.header.classes
    # Probabilities add up to one, so the mass of the classes that were left out is known.
    left = 1.0 - values.astype(np.float64).sum(axis=1)
    tail = (np.maximum(left, 0.0) / max(classes - codec.k, 1)).astype(np.float32)
    return codec.encode_sparse(values, indices, tail, classes=classes)


def _files_of_images(
    folder: LabelFolder, images: ImageTable, options: ImportOptions, notes: Notes
) -> list[tuple[int, Path]]:
    """Return (image index, file) in image order."""
    known: dict[tuple[str, str], int] = {}
    for index, text in enumerate(images.paths):
        path = PurePosixPath(text)
        # The program cuts a file name at its first dot.
        known[path.parts[0], path.name.split(".")[0]] = index
    strange = sorted(name for name in folder.by_image if name not in known)
    if strange:
        raise ImageMismatchError(
            f"labels for {len(strange)} images that the folder does not have",
            where=folder.by_image[strange[0]],
            expected=f"an image {'/'.join(strange[0])}",
            hint="give the folder of the images that were labelled",
        )
    unlabelled = len(images) - len(folder.by_image)
    if unlabelled and not options.allow_extra_images:
        raise ImageMismatchError(
            f"{unlabelled} of {len(images)} images have no labels",
            where=folder.root,
            hint="give the folder of the images that were labelled, or say --allow-extra-images",
        )
    if unlabelled:
        notes.odd.append(f"{unlabelled} of {len(images)} images have no labels")
    return sorted((known[name], path) for name, path in folder.by_image.items())


def _first_readable(files: list[tuple[int, Path]]) -> ImageCrops:
    problem: LabelFileError | None = None
    for _, path in files:
        try:
            return read_image_crops(path)
        except LabelFileError as error:
            problem = problem or error
    raise problem or LabelSourceError("no label files")


def _target(sample: ImageCrops, images: ImageTable, options: ImportOptions, notes: Notes) -> ImportTarget:
    folders = int(images.classes.max()) + 1
    classes = options.classes or likely_classes("fkd", int(sample.classes.max()), folders, notes)
    side = output_size(images, options, notes)
    notes.assumed.append("bicubic resize, as FKD's labelling program has it")
    if sample.kind != "hard":
        notes.assumed.append(f"softmax at temperature {options.temperature:g} (--temperature)")
    program = published_program("fkd", classes=classes)
    header = PoolHeader(
        classes=classes,
        batch_size=options.batch_size,
        augmentation=Augmentation(
            output_height=side, output_width=side, resize="pil_bicubic", flip_probability=PROGRAM_FLIPS
        ),
        label_kind="probabilities",
        teachers=teachers(classes, options, notes, program),
    )
    bits = sample.values.dtype.itemsize * 8
    codec = TopKCodec(k=sample.values.shape[1], value_bits=bits, label_kind="probabilities")
    return ImportTarget(header=header, codec=codec, images=images)


def _checked(path: Path, target: ImportTarget, *, crops: int) -> ImageCrops:
    """Read a file and refuse it if it differs from the others."""
    found = read_image_crops(path)
    codec = target.codec.top_k
    if codec is not None:
        expected = f"{crops} crops, top {codec.k} in {codec.value_dtype}"
        got = f"{len(found.values)} crops, top {found.values.shape[1]} in {found.values.dtype}"
        if expected != got:
            raise LabelFileError("labels differ from the others", where=path, expected=expected, got=got)
    highest = int(found.classes.max())
    if highest >= target.header.classes:
        raise LabelSourceError(
            f"labels speak of class {highest}",
            where=path,
            expected=f"classes below {target.header.classes}",
            hint="give the number of classes with --classes",
        )
    return found
