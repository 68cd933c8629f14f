"""What a batch folder does not say about itself, and how it is filled in.

Whatever the caller does not give is taken from the data where the data decide it, and assumed (and
said so) where they do not.
"""

from __future__ import annotations

import numpy as np

from lpld_labels.codecs import Codec
from lpld_labels.codecs.floats import Float16Codec, Float32Codec
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.errors import LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation, PoolHeader, Teacher
from lpld_labels.interop.importers.base import ImportOptions, ImportTarget, Notes
from lpld_labels.interop.importers.batch_list import BatchList
from lpld_labels.interop.programs import PROGRAMS, Program, published_program

UNKNOWN_TEACHER = "unknown"
DEFAULT_OUTPUT_SIZE = 224
PROGRAM_FLIPS = 0.5


def batch_target(
    sample: BatchList,
    *,
    label_format: str,
    batch_size: int,
    images: ImageTable,
    options: ImportOptions,
    notes: Notes,
) -> ImportTarget:
    """Return header and codec of a pool of batches like the sample."""
    cut_out = sample.cutouts is not None
    classes = _classes(sample, label_format, images, options, notes)
    program = published_program(label_format, classes=classes, cut_out=cut_out)
    side = output_size(images, options, notes, program)
    program = published_program(label_format, classes=classes, side=side, cut_out=cut_out)
    augmentation = Augmentation(
        output_height=side,
        output_width=side,
        resize="pil",
        flip_probability=PROGRAM_FLIPS if sample.cutouts is None else None,
        mix=sample.mix_kind,
        cutout_fraction=None if sample.cutouts is None else float(sample.cutouts[0, 2]),
    )
    header = PoolHeader(
        classes=classes,
        batch_size=batch_size,
        augmentation=augmentation,
        teachers=teachers(classes, options, notes, program),
    )
    notes.found.append(
        f"batches of {batch_size} rows, {sample.labels.dtype} labels of "
        f"{classes} classes{f', top {sample.labels.shape[1]} kept' if sample.classes is not None else ''}, "
        f"mix: {sample.mix_kind}{', cut-out' if sample.cutouts is not None else ''}"
    )
    return ImportTarget(header=header, codec=_codec(sample), images=images)


def _codec(sample: BatchList) -> Codec:
    single = sample.labels.dtype == np.float32
    if sample.classes is not None:
        return TopKCodec(k=sample.labels.shape[1], value_bits=32 if single else 16)
    return Float32Codec() if single else Float16Codec()


def _classes(
    sample: BatchList, label_format: str, images: ImageTable, options: ImportOptions, notes: Notes
) -> int:
    folders = int(images.classes.max()) + 1
    if sample.classes is None:
        classes = int(sample.labels.shape[1])
        if options.classes not in (None, classes):
            raise LabelSourceError(
                "labels have another number of classes than --classes says",
                expected=options.classes,
                got=classes,
            )
    else:
        highest = int(sample.classes.max())
        classes = options.classes or likely_classes(label_format, highest, folders, notes)
    if folders > classes:
        raise LabelSourceError(
            "the image folder has more classes than the labels have columns",
            expected=f"at most {classes} class folders",
            got=folders,
            hint="give the folder of the images that were labelled",
        )
    if folders < classes:
        notes.odd.append(f"the image folder has {folders} classes, the labels have {classes}")
    return classes


def likely_classes(label_format: str, highest: int, folders: int, notes: Notes) -> int:
    """Return the number of classes of a top-k folder that speaks of classes up to `highest`.

    Labels of more classes than there are image folders, or folders as many as a published program has
    classes, name that program; the rest is asked for.
    """
    counts = sorted(PROGRAMS[label_format])
    likely = [count for count in counts if count > highest and (highest >= folders or count == folders)]
    if not likely:
        raise LabelSourceError(
            "cannot tell the number of classes of top-k labels",
            got=f"class {highest} in the first file, {folders} image folders",
            hint="give --classes",
        )
    notes.assumed.append(f"{likely[0]} classes: top-k labels do not say how many there are (--classes)")
    return likely[0]


def output_size(
    images: ImageTable, options: ImportOptions, notes: Notes, program: Program | None = None
) -> int:
    """Return the side of a view: as given, else the program's own or that of the images, else 224."""
    if options.output_size is not None:
        return options.output_size
    sides = {*images.heights.tolist(), *images.widths.tolist()}
    size, why = DEFAULT_OUTPUT_SIZE, "the images differ in size"
    if program is not None and program.views is not None:
        size, why = program.views, f"as {program.name} makes them"
    elif len(sides) == 1:
        size, why = int(images.heights[0]), "the size of the images"
    notes.assumed.append(f"views of {size} x {size} pixels: {why} (--output-size)")
    return size


def teachers(
    classes: int, options: ImportOptions, notes: Notes, program: Program | None
) -> tuple[Teacher, ...]:
    """Return what is known of the teachers.

    Their normalisation is as given, else the published program's, else unknown.
    """
    mean, std = options.mean, options.std
    if mean is None or std is None:
        if program is not None:
            normalisation = program.normalisation
            mean, std = normalisation.mean, normalisation.std
            notes.assumed.append(
                f"{normalisation.owner} normalisation, as {program.name} has it (--mean, --std)"
            )
        else:
            notes.odd.append(
                f"the normalisation is not known, no published program labels {classes} classes like this: "
                "give --mean and --std here, or whenever the pool is used"
            )
    names = options.teachers or (UNKNOWN_TEACHER,)
    return tuple(Teacher(name=name, mean=mean, std=std) for name in names)
