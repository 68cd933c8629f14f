"""Determine an imported pool's header and codec from options, data and assumptions. Add notes on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lpld_labels.codecs import Codec
from lpld_labels.codecs.floats import Float16Codec, Float32Codec
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.errors import LabelFileError, LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.limits import MAX_JSON_BYTES
from lpld_labels.format.manifest import ENSEMBLE_WORDS, Augmentation, PoolHeader, Teacher
from lpld_labels.format.records import BatchKey
from lpld_labels.format.strict_json import convert, from_json
from lpld_labels.interop.batch_file import BatchFile
from lpld_labels.interop.layouts import CUT_OUT_PROGRAM, HEADER_FILE, LabelFolder, Layout, Program
from lpld_labels.interop.settings import ImportOptions
from lpld_labels.io.random_access import read_regular

S = TypeVar("S")
T = TypeVar("T")

PROGRAM_FLIPS = 0.5
_DEFAULT_SIDE = 224
_ENOUGH_NORMS = 4
_EQUAL_NORMS = 1e-3  # Rounding to float16 changes a norm by at most half of this.


@dataclass(frozen=True, kw_only=True)
class Notes:
    """Sentences about an import: facts, assumptions, warnings. results: parameters for the pool's lineage."""

    found: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A label folder to import. images: the images that were labelled."""

    layout: Layout
    folder: LabelFolder
    images: ImageTable
    options: ImportOptions
    notes: Notes = field(default_factory=Notes)

    @property
    def batches(self) -> Mapping[BatchKey, Path]:
        return self.folder.batches[self.layout.file]

    @property
    def class_folders(self) -> int:
        return int(self.images.classes.max()) + 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """Header, codec and images of the pool to write."""

    header: PoolHeader
    codec: Codec
    images: ImageTable

    def require_class(self, highest: int, *, where: Path) -> None:
        if highest >= self.header.classes:
            raise LabelSourceError(
                f"labels refer to class {highest}",
                where=where,
                expected=f"classes below {self.header.classes}",
                hint="give the number of classes with --classes",
            )


def first_readable(candidates: Iterable[S], read: Callable[[S], T]) -> T:
    """Return read(candidate) for the first readable candidate; if there is none, raise the first error."""
    problem: LabelFileError | None = None
    for candidate in candidates:
        try:
            return read(candidate)
        except LabelFileError as error:
            problem = problem or error
    raise problem or LabelSourceError("no label files")


def batch_target(request: Request, sample: BatchFile, batch_size: int) -> Target:
    """Return the pool to write. sample: a batch that shows the label type and mixing of all batches."""
    header = _exported_header(request, sample, batch_size) or _assumed_header(request, sample, batch_size)
    columns, dtype = sample.labels.shape[1], sample.labels.dtype
    codec: Codec = Float32Codec() if dtype == "float32" else Float16Codec()
    top = ""
    if header.label_kind == "probabilities":
        temperature(request)
    if sample.classes is not None:
        codec = TopKCodec(k=columns, value_bits=dtype.itemsize * 8)
        top = f", top {columns} kept"
    request.notes.found.append(
        f"batches of {batch_size} rows, {dtype} labels of {header.classes} classes{top}, "
        f"mix: {sample.mix_kind}{', cut-out' * (sample.cutouts is not None)}"
    )
    return Target(header=header, codec=codec, images=request.images)


def _exported_header(request: Request, sample: BatchFile, batch_size: int) -> PoolHeader | None:
    """Return the header that an export wrote beside its labels; None if missing or replaced by options."""
    path, given = request.folder.root / HEADER_FILE, request.options
    replaced = (given.classes, given.output_size, given.resize, given.mean, given.ensemble, given.teachers)
    exported = bool(request.layout.ids_file) and request.layout.label_kind == "logits"
    if any(replaced) or not exported or not path.is_file():
        return None
    try:
        document = from_json(read_regular(path, most=MAX_JSON_BYTES), where=str(path))
    except OSError as error:
        raise LabelSourceError(f"cannot read: {error.strerror}", where=path) from None
    header = convert(document, PoolHeader, where=str(path))
    if sample.classes is None and header.classes != sample.labels.shape[1]:
        problem = f"{HEADER_FILE} and the labels differ in their number of classes"
        raise LabelSourceError(problem, where=path, expected=sample.labels.shape[1], got=header.classes)
    request.notes.found.append(f"the header of the exported pool, {HEADER_FILE}")
    return replace(header, batch_size=max(batch_size, header.batch_size), label_kind="logits")


def _assumed_header(request: Request, sample: BatchFile, batch_size: int) -> PoolHeader:
    classes = _classes(request, sample)
    cut_out = sample.cutouts is not None
    program = CUT_OUT_PROGRAM if cut_out else request.layout.programs.get(classes)
    side = output_size(request, program)
    if program is not None and program.side not in (None, side):
        program = None
    return PoolHeader(
        classes=classes,
        batch_size=batch_size,
        augmentation=Augmentation(
            output_height=side,
            output_width=side,
            resize=resize(request),
            flip_probability=PROGRAM_FLIPS if sample.cutouts is None else None,
            mix=sample.mix_kind,
            cutout_fraction=None if sample.cutouts is None else float(sample.cutouts[0, 2]),
        ),
        teachers=teachers(request, classes, program),
        label_kind=request.layout.label_kind,
        ensemble=_ensemble(request, sample, side, program) if request.layout.several_teachers else None,
    )


def _classes(request: Request, sample: BatchFile) -> int:
    folders, given = request.class_folders, request.options.classes
    if sample.classes is not None:
        classes = given or likely_classes(request, int(sample.classes.max()))
    else:
        classes = sample.labels.shape[1]
        if given not in (None, classes):
            raise LabelSourceError(
                "the number of label columns differs from --classes", expected=given, got=classes
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
    """Guess the number of classes of a top-k folder whose largest class number is `highest`.

    The guess is the number of class folders if that is above `highest`. Otherwise it is the smallest class
    count above `highest` among the published programs.
    """
    folders = request.class_folders
    counts = sorted(request.layout.programs)
    likely = [count for count in counts if count > highest and (highest >= folders or count == folders)]
    if not likely:
        raise LabelSourceError(
            "cannot infer the number of classes of top-k labels",
            got=f"class {highest} in the first file, {folders} image folders",
            hint="give --classes",
        )
    request.notes.assumed.append(
        f"{likely[0]} classes: top-k labels do not say how many there are (--classes)"
    )
    return likely[0]


def output_size(request: Request, program: Program | None = None) -> int:
    """Return the side of a view: the given one, else the program's, else the side of all images, else 224."""
    if request.options.output_size is not None:
        return request.options.output_size
    sides = {*request.images.heights.tolist(), *request.images.widths.tolist()}
    size, why = _DEFAULT_SIDE, "the images differ in size"
    if program is not None and program.views is not None:
        size, why = program.views, f"as {program.name} makes them"
    elif len(sides) == 1:
        size, why = sides.pop(), "the size of the images"
    request.notes.assumed.append(f"views of {size} x {size} pixels: {why} (--output-size)")
    return size


def resize(request: Request) -> str:
    """Return how views were resized: as given, else as the program does."""
    if request.options.resize is None and request.layout.resize != "pil":
        words = {"torch": "antialiased bilinear resize of tensors", "pil_bicubic": "bicubic resize"}
        request.notes.assumed.append(
            f"{words[request.layout.resize]}, as the labelling program has it (--resize)"
        )
    return request.options.resize or request.layout.resize


def temperature(request: Request) -> None:
    """Note the temperature of stored probabilities: the given one, else the program's default."""
    found = request.options.temperature or request.layout.temperature
    request.notes.results["temperature"] = found
    request.notes.assumed.append(f"softmax at temperature {found:g} (--temperature)")


def teachers(request: Request, classes: int, program: Program | None) -> tuple[Teacher, ...]:
    """Return the teachers. The normalisation is the given one, else that of the program, else unknown."""
    mean, std = request.options.mean, request.options.std
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
    return tuple(Teacher(name=name, mean=mean, std=std) for name in request.options.teachers or ("unknown",))


def _ensemble(request: Request, sample: BatchFile, side: int, program: Program | None) -> str:
    """Return in words how the teachers' logits were combined: from the options, else as published."""
    if sample.mix_kind == "mixup" and side < _DEFAULT_SIDE:
        request.notes.odd.append(
            "G-VBSM's branches for small images label views before MixUp blends them, and train on the "
            "blended ones: a teacher will not confirm these labels"
        )
    if request.options.ensemble is not None:
        return ENSEMBLE_WORDS[request.options.ensemble]
    norms = np.linalg.norm(sample.labels.astype(np.float64), axis=1)
    if len(norms) >= _ENOUGH_NORMS and np.ptp(norms) <= _EQUAL_NORMS * norms.mean():
        request.notes.odd.append(
            "all labels have the same norm, as PRISM's programs for ResNet-50 and -101 scale them: "
            "teachers will not confirm these labels"
        )
        return "weighted mean of logits, each row scaled to the rows' mean norm"
    if program is None or program.ensemble is None:
        raise LabelSourceError(
            "cannot infer how the logits of several teachers were combined",
            expected="classes and image size of a published branch of G-VBSM",
            got=f"{sample.labels.shape[1]} classes, {side} pixels",
            hint="give --ensemble average (G-VBSM on small images) or norm-scaled (on ImageNet-1K)",
        )
    words = ENSEMBLE_WORDS[program.ensemble]
    request.notes.assumed.append(f"logits of several teachers, {words}, as {program.name} does (--ensemble)")
    return words
