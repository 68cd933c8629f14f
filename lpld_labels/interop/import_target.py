"""What a label folder does not say about itself, and how it is filled in.

Whatever the caller does not give is taken from the data where the data decide it, else assumed and reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lpld_labels.codecs import Codec
from lpld_labels.codecs.floats import Float16Codec, Float32Codec
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.errors import LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import ENSEMBLE_WORDS, Augmentation, EnsembleRule, PoolHeader, Teacher
from lpld_labels.interop.batch_file import BatchFile
from lpld_labels.interop.label_folder import LabelFolder
from lpld_labels.interop.layouts import Layout, Program
from lpld_labels.interop.settings import ImportOptions

UNKNOWN_TEACHER = "unknown"
DEFAULT_OUTPUT_SIZE = 224
PROGRAM_FLIPS = 0.5
_IMAGENET_SIDE = 224


@dataclass(frozen=True, kw_only=True)
class Notes:
    """What an import learns on its way, one sentence each."""

    found: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A folder to import in a layout, with the images that were labelled and the caller's options."""

    layout: Layout
    folder: LabelFolder
    images: ImageTable
    options: ImportOptions
    notes: Notes = field(default_factory=Notes)

    @property
    def class_folders(self) -> int:
        return int(self.images.classes.max()) + 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """What reading label files needs to know about the pool to be."""

    header: PoolHeader
    codec: Codec
    images: ImageTable


def batch_target(request: Request, sample: BatchFile, batch_size: int) -> Target:
    """Return header and codec of a pool of batches like the sample."""
    cut_out = sample.cutouts is not None
    classes = _classes(request, sample)
    program = request.layout.program(classes=classes, cut_out=cut_out)
    side = output_size(request, program)
    program = request.layout.program(classes=classes, side=side, cut_out=cut_out)
    header = PoolHeader(
        classes=classes,
        batch_size=batch_size,
        augmentation=Augmentation(
            output_height=side,
            output_width=side,
            resize="pil",
            flip_probability=PROGRAM_FLIPS if sample.cutouts is None else None,
            mix=sample.mix_kind,
            cutout_fraction=None if sample.cutouts is None else float(sample.cutouts[0, 2]),
        ),
        teachers=teachers(request, classes, program),
    )
    request.notes.found.append(
        f"batches of {batch_size} rows, {sample.labels.dtype} labels of "
        f"{classes} classes{f', top {sample.labels.shape[1]} kept' if sample.classes is not None else ''}, "
        f"mix: {sample.mix_kind}{', cut-out' if cut_out else ''}"
    )
    if request.layout.several_teachers:
        header = replace(header, ensemble=ENSEMBLE_WORDS[_ensemble(request, header, program)])
    return Target(header=header, codec=_codec(sample), images=request.images)


def _codec(sample: BatchFile) -> Codec:
    single = sample.labels.dtype == "float32"
    if sample.classes is not None:
        return TopKCodec(k=sample.labels.shape[1], value_bits=32 if single else 16)
    return Float32Codec() if single else Float16Codec()


def _classes(request: Request, sample: BatchFile) -> int:
    folders, told = request.class_folders, request.options.classes
    if sample.classes is None:
        classes = int(sample.labels.shape[1])
        if told not in (None, classes):
            raise LabelSourceError(
                "labels have another number of classes than --classes says", expected=told, got=classes
            )
    else:
        classes = told or likely_classes(request, int(sample.classes.max()))
    if folders > classes:
        raise LabelSourceError(
            "the image folder has more classes than the labels have columns",
            expected=f"at most {classes} class folders",
            got=folders,
            hint="give the folder of the images that were labelled",
        )
    if folders < classes:
        request.notes.odd.append(f"the image folder has {folders} classes, the labels have {classes}")
    return classes


def likely_classes(request: Request, highest: int) -> int:
    """Return the number of classes of a top-k folder that has classes up to `highest`.

    Labels of more classes than there are image folders, or folders as many as a published program has
    classes, name that program; otherwise the caller has to say.
    """
    folders = request.class_folders
    counts = sorted(request.layout.programs)
    likely = [count for count in counts if count > highest and (highest >= folders or count == folders)]
    if not likely:
        raise LabelSourceError(
            "cannot tell the number of classes of top-k labels",
            got=f"class {highest} in the first file, {folders} image folders",
            hint="give --classes",
        )
    request.notes.assumed.append(
        f"{likely[0]} classes: top-k labels do not say how many there are (--classes)"
    )
    return likely[0]


def output_size(request: Request, program: Program | None = None) -> int:
    """Return the side of a view: as given, else the program's own or that of the images, else 224."""
    if request.options.output_size is not None:
        return request.options.output_size
    sides = {*request.images.heights.tolist(), *request.images.widths.tolist()}
    size, why = DEFAULT_OUTPUT_SIZE, "the images differ in size"
    if program is not None and program.views is not None:
        size, why = program.views, f"as {program.name} makes them"
    elif len(sides) == 1:
        size, why = sides.pop(), "the size of the images"
    request.notes.assumed.append(f"views of {size} x {size} pixels: {why} (--output-size)")
    return size


def teachers(request: Request, classes: int, program: Program | None) -> tuple[Teacher, ...]:
    """Return what is known of the teachers; normalisation as given, else the program's, else unknown."""
    mean, std = _triple(request.options.mean), _triple(request.options.std)
    if mean is None and program is not None:
        normalisation = program.normalisation
        mean, std = normalisation.mean, normalisation.std
        request.notes.assumed.append(
            f"{normalisation.owner} normalisation, as {program.name} has it (--mean, --std)"
        )
    elif mean is None:
        request.notes.odd.append(
            f"the normalisation is not known, no published program labels {classes} classes like this: "
            "give --mean and --std here, or whenever the pool is used"
        )
    names = request.options.teachers or (UNKNOWN_TEACHER,)
    return tuple(Teacher(name=name, mean=mean, std=std) for name in names)


def _triple(values: tuple[float, ...] | None) -> tuple[float, float, float] | None:
    if values is None:
        return None
    red, green, blue = values
    return red, green, blue


def _ensemble(request: Request, header: PoolHeader, program: Program | None) -> EnsembleRule:
    """Return how the teachers' logits became one label: as told, else as the published branch does."""
    side = header.augmentation.output_height
    if header.augmentation.mix == "mixup" and side < _IMAGENET_SIDE:
        request.notes.odd.append(
            "G-VBSM's branches for small images label views before MixUp blends them, and train on the "
            "blended ones: a teacher will not confirm these labels"
        )
    if request.options.ensemble is not None:
        return request.options.ensemble
    if program is None or program.ensemble is None:
        raise LabelSourceError(
            "cannot tell how the labels of several teachers were made one",
            expected="classes and image size of a published branch of G-VBSM",
            got=f"{header.classes} classes, {side} pixels",
            hint="give --ensemble average (its branches for small images) or norm-scaled (ImageNet-1K)",
        )
    request.notes.assumed.append(
        f"logits of several teachers, {ENSEMBLE_WORDS[program.ensemble]}, as {program.name} does (--ensemble)"
    )
    return program.ensemble
