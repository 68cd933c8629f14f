"""The label folders of other programs, one table each: file names, items and types, image ids, trainers.

Import, export and claims all work from these tables, so a new program is a `Layout` here. A table also has
what the published programs build in and do not write down: normalisation, view sizes, ensembles. Where a
folder fits no published program nothing is guessed: a wrong mean changes the pixels that the student sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lpld_labels.format.manifest import EnsembleRule
from lpld_labels.interop.batch_file import Item

Triple = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """Per-channel mean and std on pixels scaled to 0..1, and whose they are."""

    owner: str
    mean: Triple
    std: Triple


IMAGENET = Normalisation(owner="ImageNet's", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
TINY = Normalisation(owner="Tiny-ImageNet's", mean=(0.4802, 0.4481, 0.3975), std=(0.2302, 0.2265, 0.2262))
CIFAR = Normalisation(owner="CIFAR-100's", mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761))
NOT_NORMALISED = Normalisation(owner="no", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


@dataclass(frozen=True, kw_only=True)
class Program:
    """One published labelling program, or one of its data sets.

    side: of the views its branch is for, which tells it from others; None where any will do.
    views: side of the views it makes whatever the images are; None where it is an option.
    ensemble: how it makes one label of several teachers; None with one teacher.
    """

    name: str
    normalisation: Normalisation
    side: int | None = None
    views: int | None = None
    ensemble: EnsembleRule | None = None


CUT_OUT_PROGRAM = Program(name="the program for ImageNet-21K", normalisation=NOT_NORMALISED)
"""Folders with cut-outs come from one program alone, whatever their number of classes."""

Check = Literal[
    "pixels", "no cut-outs", "mixed", "first image", "first images", "sampler order", "half precision", "tail"
]


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """One way to train on an exported folder.

    checks: of claims.py; it replays what was labelled if all pass.
    option, needs: may name {batch_size}, {epochs}, {batches}, {mix} and {quantization}.
    """

    program: str
    option: str
    checks: tuple[Check, ...]
    needs: str = ""


Ids = Literal["sampler", "epoch lists", "batch lists", "items"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the label folder of a program looks like.

    file: path of a batch file with {epoch} and {batch}, or with {batch} alone where batches are numbered
        through. Empty where files are by image.
    items: of the list that a batch file holds (batch_file.py).
    ids: where image ids are: drawn by a seeded sampler and not stored, in one JSON file of lists by epoch or
        by batch, or among the items. ids_file: name of that JSON file.
    several_teachers: whether a label is made of the logits of several teachers.
    programs: number of classes -> the published program that writes such folders.
    views: side of a view -> normalisation, for the data sets that the program's trainer knows.
    trainers: ways to train on an exported folder; none where pools are not exported in this layout.
    """

    name: str
    summary: str
    file: str = ""
    items: tuple[Item, ...] = ()
    ids: Ids = "items"
    ids_file: str = ""
    several_teachers: bool = False
    programs: Mapping[int, Program] = field(default_factory=dict)
    views: Mapping[int, Normalisation] = field(default_factory=dict)
    trainers: tuple[Trainer, ...] = ()

    def program(self, *, classes: int, side: int | None = None, cut_out: bool = False) -> Program | None:
        """Return the published program a folder comes from, None where none fits.

        side: of a view, to be compared; None to find out which side the program has.
        """
        if cut_out:
            return CUT_OUT_PROGRAM
        program = self.programs.get(classes)
        if program is None or (side is not None and program.side not in (None, side)):
            return None
        return program


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
    summary="epoch_E/batch_B.tar without image ids (SRe2L, CDA, CV-DD, FADRM)",
    file=_EPOCHS,
    items=_SIX,
    ids="sampler",
    programs={1000: Program(name="SRe2L's program", normalisation=IMAGENET)},
    views={224: IMAGENET},
    trainers=(
        Trainer(
            program="SRe2L train_FKD.py",
            option="default",
            checks=("pixels", "no cut-outs"),
            needs="give --fkd-path with a slash at its end, --batch-size {batch_size}, --epochs up to "
            "{epochs}{mix}",
        ),
    ),
)

_LPLD = "LPLD train_FKD_label_pruning_batch.py"
_LPLD_SIZE = "int((1 - prune_ratio) x epochs x batches of epoch 0) must not exceed {batches}"
LPLD = Layout(
    name="lpld",
    summary="epoch_E/batch_B.tar with sampler_indices_epoch.json (LPLD)",
    file=_EPOCHS,
    items=_SIX,
    ids="epoch lists",
    ids_file="sampler_indices_epoch.json",
    programs={
        1000: Program(name="LPLD's program for ImageNet-1K", normalisation=IMAGENET),
        200: Program(name="LPLD's program for Tiny-ImageNet", normalisation=TINY),
    },
    views={224: IMAGENET, 64: TINY},
    trainers=(
        Trainer(
            program=_LPLD,
            option="--prune_label --granularity batch",
            checks=("pixels",),
            needs=_LPLD_SIZE,
        ),
        Trainer(
            program=_LPLD,
            option="--prune_label --granularity batch_to_epoch",
            checks=("pixels", "first image"),
            needs=f"it never shows the last batch of an epoch; {_LPLD_SIZE}",
        ),
        Trainer(
            program=_LPLD,
            option="--prune_label --granularity epoch, or no --prune_label",
            checks=("pixels", "sampler order"),
        ),
    ),
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
        1000: Program(name="LPQLD's program for ImageNet-1K", normalisation=IMAGENET, views=224),
        200: Program(name="LPQLD's program for Tiny-ImageNet", normalisation=TINY, views=224),
        10450: CUT_OUT_PROGRAM,
    },
    views={224: IMAGENET, 64: TINY},
    trainers=(
        Trainer(
            program="LPQLD train_FKD_LPQLD.py",
            option="--prune_label{quantization}",
            checks=("pixels", "first images", "half precision", "tail"),
        ),
    ),
)

GVBSM = Layout(
    name="gvbsm",
    summary="epoch_E/batch_B.tar with image ids in every batch (G-VBSM)",
    file=_EPOCHS,
    items=(*_SIX, Item("images", "i8")),
    several_teachers=True,
    # Plain averages in the branches for small images, norm scaling for ImageNet-1K; CIFAR-10's branch
    # has CIFAR-100's normalisation and Tiny-ImageNet's has ImageNet's.
    programs={
        1000: Program(
            name="G-VBSM's branch for ImageNet-1K", normalisation=IMAGENET, side=224, ensemble="norm-scaled"
        ),
        200: Program(
            name="G-VBSM's branch for Tiny-ImageNet", normalisation=IMAGENET, side=64, ensemble="average"
        ),
        100: Program(name="G-VBSM's branch for CIFAR-100", normalisation=CIFAR, side=32, ensemble="average"),
        10: Program(name="G-VBSM's branch for CIFAR-10", normalisation=CIFAR, side=32, ensemble="average"),
    },
    views={224: IMAGENET, 64: IMAGENET, 32: CIFAR},
    trainers=(
        Trainer(
            program="G-VBSM train_FKD.py",
            option="default",
            checks=("pixels", "no cut-outs", "mixed"),
            needs="give --batch-size {batch_size}, --epochs up to {epochs}{mix}",
        ),
    ),
)

FKD = Layout(
    name="fkd",
    summary="[[NAME/]train/]CLASS/IMAGE.tar, crops and labels by image (FKD)",
    programs={1000: Program(name="FKD's program", normalisation=IMAGENET)},
)

LAYOUTS: Mapping[str, Layout] = {layout.name: layout for layout in (SRE2L, LPLD, LPQLD, GVBSM, FKD)}
"""By name, in the order in which a folder is compared with them."""
ID_FILES = frozenset(layout.ids_file for layout in LAYOUTS.values() if layout.ids_file)
