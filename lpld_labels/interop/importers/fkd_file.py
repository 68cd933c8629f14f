"""One file of FKD: what its program saves about one image.

    [coords float [n, 4], flips bool [n], labels], labels being one of the program's label types:

    hard        class numbers [n]
    smoothing   [n, 2]: class number, its probability
    marginal    [n, 2, k]: the k most likely classes, their probabilities (marginal_smoothing_k5, ...)

Class numbers are floats wherever they stand beside probabilities or were saved in half precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import LabelFileError
from lpld_labels.format.records import BoolArray, IntArray, LabelArray
from lpld_labels.interop.importers.torch_zip import read_torch_zip

FkdLabels = Literal["hard", "smoothing", "marginal"]

_FLOATS = (np.float16, np.float32)
_LARGEST_HALF = 2048
"""Above this, half precision does not hold every whole number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageCrops:
    """What one file says about its image.

    coords: [n, 4] fractions. flips: bool [n]. classes: int32 [n, k].
    values: float16/32 [n, k], probabilities; 1 for hard labels.
    """

    kind: FkdLabels
    coords: npt.NDArray[np.floating[Any]]
    flips: BoolArray
    classes: IntArray
    values: LabelArray


def read_image_crops(path: Path) -> ImageCrops:
    """Read and check one file."""
    match read_torch_zip(path):
        case [np.ndarray() as coords, np.ndarray() as flips, np.ndarray() as labels]:
            pass
        case _:
            raise LabelFileError("not labels of one image", where=path, expected="a list of three arrays")
    rows = len(flips) if flips.ndim == 1 else 0
    good = coords.dtype in _FLOATS and flips.dtype == np.bool_ and coords.shape == (rows, 4) and rows > 0
    kind = _kind(labels, rows)
    if not good or kind is None:
        raise LabelFileError(
            "labels have the wrong shape or type",
            where=path,
            expected="coords float [n, 4], flips bool [n], labels [n], [n, 2] or [n, 2, k]",
            got=", ".join(f"{a.dtype} {list(a.shape)}" for a in (coords, flips, labels)),
        )
    numbers, values = _parts(labels, kind)
    _check_ranges(path, coords, numbers, values, half=labels.dtype == np.float16)
    return ImageCrops(kind=kind, coords=coords, flips=flips, classes=numbers.astype(np.int32), values=values)


def _kind(labels: npt.NDArray[Any], rows: int) -> FkdLabels | None:
    if labels.shape == (rows,) and (labels.dtype.kind in "iu" or labels.dtype in _FLOATS):
        return "hard"
    if labels.dtype not in _FLOATS:
        return None
    if labels.shape == (rows, 2):
        return "smoothing"
    return "marginal" if labels.ndim == 3 and labels.shape[:2] == (rows, 2) and labels.size else None


def _parts(labels: npt.NDArray[Any], kind: FkdLabels) -> tuple[npt.NDArray[np.float64], LabelArray]:
    """Return class numbers and probabilities, [n, k] each."""
    if kind == "hard":
        return labels[:, None].astype(np.float64), np.ones((len(labels), 1), np.float16)
    pairs = labels[:, :, None] if kind == "smoothing" else labels
    return pairs[:, 0].astype(np.float64), pairs[:, 1]


def _check_ranges(
    path: Path,
    coords: npt.NDArray[np.floating[Any]],
    numbers: npt.NDArray[np.float64],
    values: LabelArray,
    *,
    half: bool,
) -> None:
    sound = (
        ((coords >= 0) & (coords <= 1)).all()
        and ((numbers >= 0) & (numbers < 2**24) & (numbers == np.round(numbers))).all()
        and ((values >= 0) & (values <= 1)).all()
    )
    if not sound:
        raise LabelFileError(
            "labels are out of range",
            where=path,
            expected="coords 0 to 1, whole class numbers, probabilities 0 to 1",
        )
    if half and numbers.max() > _LARGEST_HALF:
        raise LabelFileError(
            "class numbers in half precision are not exact",
            where=path,
            expected=f"classes up to {_LARGEST_HALF}",
            got=int(numbers.max()),
            hint="label again without --use_fp16",
        )
