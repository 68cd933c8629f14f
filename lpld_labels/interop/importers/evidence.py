"""Evidence for image ids, from the labels alone.

Labels of one image resemble each other whatever crop the teacher saw; labels of different images do
not. So under the right order the rows of epochs 0 and 1 that belong to the same image correlate, and
under a wrong one they do not. Nothing but the labels is needed: no teacher and no pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import LabelFileError
from lpld_labels.format.records import BatchKey, IntArray
from lpld_labels.interop.importers.batch_list import BatchList, read_batch_list
from lpld_labels.interop.label_folder import LabelFolder
from lpld_labels.interop.sampler import ERAS, Era, epoch_orders

WANTED_PAIRS = 400
"""Enough to tell a correlation of 0.05 from none; more would only cost time."""
ENOUGH_PAIRS = 16
CERTAIN = 5.0
"""Standard errors above zero from which agreement counts as real."""


@dataclass(frozen=True, kw_only=True)
class EraEvidence:
    """How well the labels of the same image agree under each order.

    agreement: mean correlation of the paired rows. error: its standard error. pairs: how many.
    """

    agreement: dict[Era, float]
    error: dict[Era, float]
    pairs: dict[Era, int]

    def supports(self, era: Era) -> bool:
        """Say whether the agreement cannot be chance."""
        return self.agreement[era] > CERTAIN * self.error[era]

    def sentence(self) -> str:
        """Return the numbers as text."""
        parts = [
            f"{self.agreement[era]:.2f} +- {self.error[era]:.2f} if {era}, {self.pairs[era]} pairs"
            for era in ERAS
        ]
        return f"agreement of labels of the same image is {'; '.join(parts)}"


def gather_evidence(folder: LabelFolder, batch_size: int, images: int, *, seed: int) -> EraEvidence | None:
    """Compare some rows of epochs 0 and 1; None if there are too few to tell."""
    # m rows of each epoch have m * m / images images in common.
    batches = math.ceil(math.sqrt(WANTED_PAIRS * images) / batch_size)
    epochs = [_Rows.read(folder, epoch, batches, batch_size) for epoch in (0, 1)]
    first, second = epochs
    if first is None or second is None:
        return None
    similarity = first.directions @ second.directions.T
    agreement, error, pairs = {}, {}, {}
    for era in ERAS:
        orders = epoch_orders(images, era=era, seed=seed)
        ids = [next(orders)[rows.places] for rows in (first, second)]
        matched = similarity[ids[0][:, None] == ids[1][None, :]]
        if len(matched) < ENOUGH_PAIRS:
            return None
        agreement[era] = float(matched.mean())
        error[era] = float(matched.std() / math.sqrt(len(matched)))
        pairs[era] = len(matched)
    return EraEvidence(agreement=agreement, error=error, pairs=pairs)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """Some rows of one epoch.

    directions: float32 [n, C], label minus row and column mean, length 1.
    places: int32 [n], position in the epoch of the image that makes most of each view.
    """

    directions: npt.NDArray[np.float32]
    places: IntArray

    @staticmethod
    def read(folder: LabelFolder, epoch: int, batches: int, batch_size: int) -> _Rows | None:
        labels: list[npt.NDArray[np.float32]] = []
        places: list[IntArray] = []
        for key, path in folder.by_epoch.items():
            if key.epoch == epoch and len(labels) < batches:
                record = _readable(path)
                if record is not None:
                    labels.append(record.labels.astype(np.float32))
                    places.append(_first_place(key, batch_size) + _dominant(record))
        if not labels:
            return None
        rows = np.concatenate(labels)
        rows -= rows.mean(axis=1, keepdims=True)
        rows -= rows.mean(axis=0)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.maximum(lengths, np.finfo(np.float32).tiny)
        return _Rows(directions=rows, places=np.concatenate(places))


def _first_place(key: BatchKey, batch_size: int) -> int:
    return key.batch * batch_size


def _readable(path: Path) -> BatchList | None:
    try:
        return read_batch_list(path)
    except LabelFileError:
        return None


def _dominant(record: BatchList) -> IntArray:
    """Return the slot of the image that a view shows most of: its own or its partner's."""
    if record.mix is None or record.mix.strength >= 0.5:
        return np.arange(record.rows, dtype=np.int32)
    return record.mix.partner
