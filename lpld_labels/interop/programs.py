"""What the published labelling programs have built in and do not write down: normalisation, ensembles.

A folder tells its layout, its number of classes and the size of its images. Where these name one
published program, what that program does is known. Where they do not, nothing is guessed: a wrong mean
shows the student other pixels than the teacher saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lpld_labels.format.manifest import EnsembleRule

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

_LPLD = {
    1000: Program(name="LPLD's program for ImageNet-1K", normalisation=IMAGENET),
    200: Program(name="LPLD's program for Tiny-ImageNet", normalisation=TINY),
}
# LPQLD's labelling program makes views of 224 pixels whatever its options and data set say.
_LPQLD = {
    1000: Program(name="LPQLD's program for ImageNet-1K", normalisation=IMAGENET, views=224),
    200: Program(name="LPQLD's program for Tiny-ImageNet", normalisation=TINY, views=224),
    10450: CUT_OUT_PROGRAM,
}
# Plain averages in the branches for small images, norm scaling for ImageNet-1K; CIFAR-10's branch
# has CIFAR-100's normalisation and Tiny-ImageNet's has ImageNet's.
_GVBSM = {
    1000: Program(
        name="G-VBSM's branch for ImageNet-1K", normalisation=IMAGENET, side=224, ensemble="norm-scaled"
    ),
    200: Program(
        name="G-VBSM's branch for Tiny-ImageNet", normalisation=IMAGENET, side=64, ensemble="average"
    ),
    100: Program(name="G-VBSM's branch for CIFAR-100", normalisation=CIFAR, side=32, ensemble="average"),
    10: Program(name="G-VBSM's branch for CIFAR-10", normalisation=CIFAR, side=32, ensemble="average"),
}
PROGRAMS: Mapping[str, Mapping[int, Program]] = {
    "sre2l": {1000: Program(name="SRe2L's program", normalisation=IMAGENET)},
    "lpld": _LPLD,
    "lpqld": _LPQLD,
    "gvbsm": _GVBSM,
    "fkd": {1000: Program(name="FKD's program", normalisation=IMAGENET)},
}
"""Format -> number of classes -> the published program that writes it."""


def published_program(
    label_format: str, *, classes: int, side: int | None = None, cut_out: bool = False
) -> Program | None:
    """Return the program a folder comes from, None where none fits.

    side: of a view, to be compared; None to find out which side the program has.
    """
    if cut_out:
        return CUT_OUT_PROGRAM
    program = PROGRAMS.get(label_format, {}).get(classes)
    if program is None or (side is not None and program.side not in (None, side)):
        return None
    return program
