"""Layouts of other programs' label folders, and listing the files of such a folder.

A layout also records what the published programs hard-code: normalisation, view sizes, ensembles. Folders
that match no published program have no defaults, because a wrong mean would change the student's pixels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.manifest import EnsembleRule
from lpld_labels.format.records import BatchKey
from lpld_labels.format.schema import LabelKind
from lpld_labels.interop.batch_file import Item

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Normalisation:
    """Per-channel mean and std of pixels scaled to 0..1. owner: their origin for messages ("ImageNet's")."""

    owner: str
    mean: Triple
    std: Triple


IMAGENET = Normalisation("ImageNet's", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
TINY = Normalisation("Tiny-ImageNet's", mean=(0.4802, 0.4481, 0.3975), std=(0.2302, 0.2265, 0.2262))
CIFAR = Normalisation("CIFAR-100's", mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761))
NOT_NORMALISED = Normalisation("no", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


@dataclass(frozen=True)
class Program:
    """A published labelling program, or its branch for one data set.

    side: the only view size it supports; None if it supports any.
    views: the view size it always writes; None if the size is an option.
    ensemble: how it combines the logits of several teachers; None if it has one teacher.
    """

    name: str
    normalisation: Normalisation
    side: int | None = None
    views: int | None = None
    ensemble: EnsembleRule | None = None


CUT_OUT_PROGRAM = Program("the program for ImageNet-21K", NOT_NORMALISED)
"""The only program that writes cut-outs. It applies to any number of classes."""

Ids = Literal["sampler", "epoch lists", "batch lists", "items"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The label folder of a program.

    file: path template of a batch file. It lacks {epoch} if batch numbers continue across epochs. It lacks
        {batch} if a file holds the batches of an epoch. It is empty if there is a file per image.
    items: items of the list in a batch file (batch_file.py).
    ids: where image ids come from: a seeded sampler, one file (ids_file) of lists, or the items.
    several_teachers: whether labels combine the logits of several teachers.
    resize: how the program resizes crops. square: whether it requires square images.
    temperature: the program's default for labels that are probabilities.
    programs: number of classes -> the published program that writes such folders.
    views: view size -> normalisation, for the data sets that the program's trainers support.
    """

    name: str
    summary: str
    file: str = ""
    items: tuple[Item, ...] = ()
    ids: Ids = "items"
    ids_file: str = ""
    several_teachers: bool = False
    resize: str = "pil"
    square: bool = False
    label_kind: LabelKind = "logits"
    temperature: float = 1.0
    programs: Mapping[int, Program] = field(default_factory=dict)
    views: Mapping[int, Normalisation] = field(default_factory=dict)


_EPOCHS = "epoch_{epoch}/batch_{batch}.tar"
_SIX = (
    Item("coords", "f4"),
    Item("flips"),
    Item("partners", "i8"),
    Item("strength"),
    Item("box"),
    Item("labels"),
)

SRE2L = Layout(
    name="sre2l",
    summary="epoch_E/batch_B.tar without image ids (SRe2L, CDA, CUDD, CV-DD, FADRM)",
    file=_EPOCHS,
    items=_SIX,
    ids="sampler",
    programs={1000: Program("SRe2L's program", IMAGENET)},
    views={224: IMAGENET},
)

LPLD = Layout(
    name="lpld",
    summary="epoch_E/batch_B.tar with sampler_indices_epoch.json (LPLD)",
    file=_EPOCHS,
    items=_SIX,
    ids="epoch lists",
    ids_file="sampler_indices_epoch.json",
    programs={
        1000: Program("LPLD's program for ImageNet-1K", IMAGENET),
        200: Program("LPLD's program for Tiny-ImageNet", TINY),
    },
    views={224: IMAGENET, 64: TINY},
)

LPQLD = Layout(
    name="lpqld",
    summary="batch_N.tar with sampler_indices_batch.json, top-k labels (LPQLD)",
    file="batch_{batch}.tar",
    items=(
        Item("coords", "f2"),
        Item("flips"),
        Item("partners", "u1"),
        Item("strength"),
        Item("box", "u1"),
        Item("labels"),
        Item("classes", "i2", optional=True),
    ),
    ids="batch lists",
    ids_file="sampler_indices_batch.json",
    # The labelling program makes views of 224 pixels whatever its options and data set say.
    programs={
        1000: Program("LPQLD's program for ImageNet-1K", IMAGENET, views=224),
        200: Program("LPQLD's program for Tiny-ImageNet", TINY, views=224),
        10450: CUT_OUT_PROGRAM,
    },
    views={224: IMAGENET, 64: TINY},
)

GVBSM = Layout(
    name="gvbsm",
    summary="epoch_E/batch_B.tar with image ids in every batch (G-VBSM, PRISM)",
    file=_EPOCHS,
    items=(*_SIX, Item("images", "i8")),
    several_teachers=True,
    # The branches for small images average the logits; the one for ImageNet-1K scales them by norm. The
    # CIFAR-10 branch normalises as for CIFAR-100, the Tiny-ImageNet branch as for ImageNet.
    programs={
        1000: Program("G-VBSM's branch for ImageNet-1K", IMAGENET, side=224, ensemble="norm-scaled"),
        200: Program("G-VBSM's branch for Tiny-ImageNet", IMAGENET, side=64, ensemble="average"),
        100: Program("G-VBSM's branch for CIFAR-100", CIFAR, side=32, ensemble="average"),
        10: Program("G-VBSM's branch for CIFAR-10", CIFAR, side=32, ensemble="average"),
    },
    views={224: IMAGENET, 64: IMAGENET, 32: CIFAR},
)

# Crops are cut from tensors, and rows are divided by the image's width. The programs for small images write
# G-VBSM's layout.
_EDC_224 = Program("EDC's program", IMAGENET, side=224, ensemble="average")
EDC = Layout(
    name="edc",
    summary="epoch_E/batch_B.tar with image ids and patch indices in every batch (EDC)",
    file=_EPOCHS,
    items=(*_SIX, Item("images", "i8"), Item("patches", "i4")),
    several_teachers=True,
    resize="torch",
    square=True,
    programs={1000: _EDC_224, 10: _EDC_224},
)

WMDD = Layout(
    name="wmdd",
    summary="epoch_E/batch_B.tar with a weight for each row, without image ids (WMDD)",
    file=_EPOCHS,
    items=(*_SIX, Item("weights")),
    ids="sampler",
    programs=dict.fromkeys((1000, 200, 10), Program("WMDD's program", IMAGENET)),
)

# Labels are softened, and crops are rounded to half precision. The trainer's temperature is 20, too.
HALD = Layout(
    name="hald",
    summary="epoch_E.tar with the batches of an epoch, sampler_indices_dict.pt (HALD)",
    file="epoch_{epoch}.tar",
    items=(Item("coords", "f2"), *_SIX[1:]),
    ids="epoch lists",
    ids_file="sampler_indices_dict.pt",
    label_kind="probabilities",
    temperature=20.0,
    programs={
        1000: Program("HALD's program for ImageNet-1K", IMAGENET, side=224),
        200: Program("HALD's program for Tiny-ImageNet", IMAGENET, side=64),
        100: Program("HALD's program for CIFAR-100", CIFAR, side=32),
    },
)

FKD = Layout(
    name="fkd",
    summary="[[NAME/]train/]CLASS/IMAGE.tar, crops and labels by image (FKD)",
    resize="pil_bicubic",
    label_kind="probabilities",
    programs={1000: Program("FKD's program", IMAGENET)},
)

LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout for layout in (LPLD, SRE2L, LPQLD, GVBSM, EDC, WMDD, HALD, FKD)
}
"""Layouts by name, in the order of detection. LPLD is before SRe2L, which is LPLD without the file of ids."""
SAME_LAYOUT: Mapping[str, str] = {
    **dict.fromkeys(("cda", "cudd", "cv-dd", "fadrm"), SRE2L.name),
    "prism": GVBSM.name,
}
"""Other programs -> the layout that they write."""
HEADER_FILE = "lpld-labels.json"
"""Name of an exported pool's header file. Layouts without `ids_file` lack it: their trainers count files."""
SIDE_FILES = frozenset({HEADER_FILE, *(layout.ids_file for layout in LAYOUTS.values() if layout.ids_file)})

_IMAGE_SUFFIX = ".tar"
_ZIP = b"PK\x03\x04"
_FIRST_MEMBER = b"/data.pkl"
_FIRST_BYTES = 512  # Enough for the zip header and the name of the first member.


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>0|[1-9]\\d{0,8})", re.escape(template)))


_FILES = {layout.file: _pattern(layout.file) for layout in LAYOUTS.values() if layout.file}
_FOLDERS = [_pattern(file.rpartition("/")[0]) for file in _FILES if "/" in file]


@dataclass(frozen=True, kw_only=True)
class LabelFolder:
    """The files of a label folder, listed without opening any.

    batches: `Layout.file` -> key -> path; all keys have epoch 0 if batch numbers continue across epochs, and
        batch 0 if a file holds an epoch.
    by_image: (class folder, stem) -> path; empty if there are batches. unknown: names that match no layout.
    """

    root: Path
    batches: Mapping[str, Mapping[BatchKey, Path]]
    by_image: Mapping[tuple[str, str], Path]
    unknown: tuple[str, ...]

    def files(self, layout: Layout) -> list[Path]:
        """Return a layout's files, sorted by batch, then epoch. So short last batches of epochs come late."""
        if not layout.file:
            return list(self.by_image.values())
        batches = self.batches[layout.file]
        return [batches[key] for key in sorted(batches, key=lambda key: (key.batch, key.epoch))]

    def has_ids(self, layout: Layout) -> bool:
        return (self.root / layout.ids_file).is_file()


def is_label_file(path: Path) -> bool:
    """Whether a file ends in .tar and begins like a torch.save file."""
    if path.suffix != _IMAGE_SUFFIX or path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as stream:
        start = stream.read(_FIRST_BYTES)
    return start.startswith(_ZIP) and _FIRST_MEMBER in start


def list_label_folder(root: Path) -> LabelFolder:
    """List a label folder. Files of images are CLASS/IMAGE.tar, below the folder, train/ or NAME/train/."""
    names: list[str] = []
    for name in _names(root):
        in_layout = any(pattern.fullmatch(name) for pattern in _FOLDERS) and (root / name).is_dir()
        names += [f"{name}/{below}" for below in _names(root / name)] if in_layout else [name]
    batches: dict[str, dict[BatchKey, Path]] = {}
    for file, pattern in _FILES.items():
        found = [(match.groupdict(), name) for name in names if (match := pattern.fullmatch(name))]
        keys = {BatchKey(int(part.get("epoch", 0)), int(part.get("batch", 0))): name for part, name in found}
        batches[file] = {key: root / keys[key] for key in sorted(keys)}
    by_image = {} if any(batches.values()) else _image_files(root)
    known = {path for found in batches.values() for path in found.values()}
    unknown = [name for name in names if root / name not in known and name not in SIDE_FILES]
    return LabelFolder(
        root=root, batches=batches, by_image=by_image, unknown=() if by_image else tuple(unknown)
    )


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except FileNotFoundError:
        raise LabelSourceError("label folder does not exist", where=folder) from None
    except OSError as error:
        raise LabelSourceError(f"cannot list label folder: {error.strerror}", where=folder) from None


def _image_files(root: Path) -> dict[tuple[str, str], Path]:
    base = _classes_folder(root)
    return {
        (class_name, name.removesuffix(_IMAGE_SUFFIX)): base / class_name / name
        for class_name in _names(base)
        if (base / class_name).is_dir()
        for name in _names(base / class_name)
        if name.endswith(_IMAGE_SUFFIX)
    }


def _classes_folder(root: Path) -> Path:
    if (root / "train").is_dir():
        return root / "train"
    below = [path for name in _names(root) if (path := root / name / "train").is_dir()]
    if len(below) > 1:
        raise LabelSourceError(
            "the folder contains labels of several data sets",
            where=root,
            got=", ".join(path.parent.name for path in below),
            hint="give one of these folders",
        )
    return below[0] if below else root
