"""What a label folder does not say about itself, and how it is filled in.

What the caller does not give is taken from the data where the data decide it, else assumed and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from lpld_labels.codecs import Codec
from lpld_labels.codecs.floats import Float16Codec, Float32Codec
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.errors import LabelFileError, LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import ENSEMBLE_WORDS, Augmentation, EnsembleRule, PoolHeader, Teacher
from lpld_labels.format.records import BatchKey
from lpld_labels.interop.batch_file import BatchFile
from lpld_labels.interop.label_folder import LabelFolder
from lpld_labels.interop.layouts import Layout, Program
from lpld_labels.interop.settings import ImportOptions

S = TypeVar("S")
T = TypeVar("T")

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
    def batches(self) -> Mapping[BatchKey, Path]:
        """The batch files of this layout."""
        return self.folder.batches[self.layout.file]

    @property
    def class_folders(self) -> int:
        return int(self.images.classes.max()) + 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """The pool that label files are read for."""

    header: PoolHeader
    codec: Codec
    images: ImageTable

    def require_class(self, highest: int, *, where: Path) -> None:
        """Refuse class numbers beyond the pool's classes."""
        if highest >= self.header.classes:
            raise LabelSourceError(
                f"labels speak of class {highest}",
                where=where,
                expected=f"classes below {self.header.classes}",
                hint="give the number of classes with --classes",
            )


def first_readable(candidates: Iterable[S], read: Callable[[S], T]) -> T:
    """Return the first candidate that can be read; raise the first error if none can."""
    problem: LabelFileError | None = None
    for candidate in candidates:
        try:
            return read(candidate)
        except LabelFileError as error:
            problem = problem or error
    raise problem or LabelSourceError("no label files")


def batch_target(request: Request, sample: BatchFile, batch_size: int) -> Target:
    """Return header and codec of a pool of batches like the sample."""
    cut_out, top = sample.cutouts is not None, sample.classes is not None
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
    columns, dtype = sample.labels.shape[1], sample.labels.dtype
    request.notes.found.append(
        f"batches of {batch_size} rows, {dtype} labels of {classes} classes{f', top {columns} kept' * top}, "
        f"mix: {sample.mix_kind}{', cut-out' * cut_out}"
    )
    if request.layout.several_teachers:
        header = replace(header, ensemble=ENSEMBLE_WORDS[_ensemble(request, header, program)])
    codec: Codec = Float32Codec() if dtype == "float32" else Float16Codec()
    if top:
        codec = TopKCodec(k=columns, value_bits=dtype.itemsize * 8)
    return Target(header=header, codec=codec, images=request.images)


def _classes(request: Request, sample: BatchFile) -> int:
    folders, given = request.class_folders, request.options.classes
    if sample.classes is not None:
        classes = given or likely_classes(request, int(sample.classes.max()))
    else:
        classes = sample.labels.shape[1]
        if given not in (None, classes):
            raise LabelSourceError(
                "labels have another number of classes than --classes says", expected=given, got=classes
            )
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
        mean, std = program.normalisation.mean, program.normalisation.std
        request.notes.assumed.append(
            f"{program.normalisation.owner} normalisation, as {program.name} has it (--mean, --std)"
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
    """Return how the teachers' logits became one label: as given, else as the published branch does."""
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
