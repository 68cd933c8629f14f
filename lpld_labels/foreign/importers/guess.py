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
from lpld_labels.foreign.importers.base import ImportOptions, ImportTarget, Notes
from lpld_labels.foreign.importers.batch_list import BatchList
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation, PoolHeader, Teacher

KNOWN_CLASS_COUNTS = (10, 100, 200, 1000, 10450)
"""CIFAR-10, CIFAR-100, Tiny-ImageNet, ImageNet-1K, ImageNet-21K-P."""

Triple = tuple[float, float, float]
IMAGENET: tuple[Triple, Triple] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TINY: tuple[Triple, Triple] = ((0.4802, 0.4481, 0.3975), (0.2302, 0.2265, 0.2262))
NOT_NORMALISED: tuple[Triple, Triple] = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
DEFAULT_OUTPUT_SIZE = 224
PROGRAM_FLIPS = 0.5


def batch_target(
    sample: BatchList, *, batch_size: int, images: ImageTable, options: ImportOptions, notes: Notes
) -> ImportTarget:
    """Return header and codec of a pool of batches like the sample."""
    classes = _classes(sample, images, options, notes)
    side = output_size(images, options, notes)
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
        teachers=(teacher(classes, options, notes, normalised=sample.cutouts is None),),
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


def _classes(sample: BatchList, images: ImageTable, options: ImportOptions, notes: Notes) -> int:
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
        classes = options.classes or likely_classes(int(sample.classes.max()), folders, notes)
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


def likely_classes(highest: int, folders: int, notes: Notes) -> int:
    """Return the number of classes of a top-k folder that speaks of classes up to `highest`."""
    likely = [count for count in (folders, *KNOWN_CLASS_COUNTS) if count > highest]
    if not likely:
        raise LabelSourceError(
            "cannot tell the number of classes of top-k labels", got=f"class {highest}", hint="give --classes"
        )
    notes.assumed.append(f"{likely[0]} classes: top-k labels do not say how many there are (--classes)")
    return likely[0]


def output_size(images: ImageTable, options: ImportOptions, notes: Notes) -> int:
    """Return the side of a view: as given, else that of the images if all are one square, else 224."""
    if options.output_size is not None:
        return options.output_size
    sides = {*images.heights.tolist(), *images.widths.tolist()}
    size, why = DEFAULT_OUTPUT_SIZE, "the images differ in size"
    if len(sides) == 1:
        size, why = int(images.heights[0]), "the size of the images"
    notes.assumed.append(f"views of {size} x {size} pixels: {why} (--output-size)")
    return size


def teacher(classes: int, options: ImportOptions, notes: Notes, *, normalised: bool) -> Teacher:
    """Return what is known of the teacher; the normalisation is the programs' own unless given."""
    mean, std = (IMAGENET if classes != 200 else TINY) if normalised else NOT_NORMALISED
    if options.mean is None or options.std is None:
        name = {IMAGENET: "ImageNet's", TINY: "Tiny-ImageNet's", NOT_NORMALISED: "no"}[mean, std]
        notes.assumed.append(f"{name} normalisation, as the labelling programs do (--mean, --std)")
    return Teacher(name=options.teacher, mean=options.mean or mean, std=options.std or std)
