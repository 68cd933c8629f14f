"""A small real data set without a download: scikit-learn's handwritten digits as image folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from sklearn.datasets import load_digits

from lpld_labels.format.random_streams import keyed_generator

SIDE = 32
"""The digits are 8 x 8 pixels; enlarged, random crops have something to choose from."""
CLASSES = 10
_BRIGHTEST = 16


@dataclass(frozen=True, kw_only=True)
class DigitFolders:
    """Three disjoint image folders: what the teacher learns from, what it labels, what all are judged by."""

    teacher: Path
    distilled: Path
    validation: Path


def write_digits(root: Path, *, per_class: int = 10, validation: int = 500, seed: int = 0) -> DigitFolders:
    """Write the 1,797 digits as PNG files.

    per_class: images of each digit to be labelled. validation: images held out, of all digits.
    The rest, about 1,200, is for the teacher.
    """
    folders = DigitFolders(
        teacher=root / "teacher", distilled=root / "distilled", validation=root / "validation"
    )
    images, labels = load_digits(return_X_y=True)
    order = np.argsort(keyed_generator(seed).random(len(labels)), kind="stable")
    held_out, rest = order[:validation], order[validation:]
    labelled = np.concatenate([rest[labels[rest] == digit][:per_class] for digit in range(CLASSES)])
    shares = {
        folders.validation: held_out,
        folders.distilled: labelled,
        folders.teacher: np.setdiff1d(rest, labelled),
    }
    for folder, rows in shares.items():
        for row in sorted(rows.tolist()):
            _write(folder / str(labels[row]) / f"{row:04d}.png", images[row])
    return folders


def _write(path: Path, digit: npt.NDArray[np.float64]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    grey = (digit.reshape(8, 8) * (255 / _BRIGHTEST)).round().astype(np.uint8)
    Image.fromarray(grey).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path)
