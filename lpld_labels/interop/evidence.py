"""Which order of image ids fits a folder that stores none, judged by its labels alone.

Labels of one image resemble each other whatever crop the teacher saw; labels of different images do
not. So under the right order the rows of epochs 0 and 1 that belong to the same image correlate, and
under a wrong one they do not. It stays an assumption until a teacher confirms it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import LabelFileError, LabelSourceError
from lpld_labels.format.records import IntArray
from lpld_labels.interop.batch_file import BatchFile, read_batch_file
from lpld_labels.interop.image_ids import ERAS, Era, SampledOrders
from lpld_labels.interop.import_target import Request

WANTED_PAIRS = 400
"""Enough to tell a correlation of 0.05 from none; more would only cost time."""
ENOUGH_PAIRS = 16
CERTAIN = 5.0
"""Standard errors above zero from which agreement counts as real."""
_ERA_NAMES: dict[Era, str] = {"new": "PyTorch >= 1.11", "old": "PyTorch < 1.11"}


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How well labels of the same image agree under one order of ids.

    mean: correlation of the paired rows. error: its standard error. pairs: how many.
    """

    mean: float
    error: float
    pairs: int

    @property
    def real(self) -> bool:
        """Whether this cannot be chance."""
        return self.mean > CERTAIN * self.error


def chosen_era(request: Request, batch_size: int) -> Era:
    """Return the era that is given, or that fits the labels; refuse labels that none fits."""
    options, notes = request.options, request.notes
    found = agreement_by_era(request, batch_size)
    seeded = f"RandomSampler, seed {options.sampler_seed}"
    if options.torch_era != "auto":
        era = options.torch_era
        notes.assumed.append(f"image ids of {seeded}, {_ERA_NAMES[era]}, as told (--torch-era)")
        if found and not found[era].real:
            notes.odd.append(f"the labels do not support these image ids: {_sentence(found)}")
        return era
    if not found:
        notes.assumed.append(
            f"image ids of {seeded}, {_ERA_NAMES['new']}; the folder is too small to tell (--torch-era)"
        )
        return "new"
    best = max(ERAS, key=lambda era: found[era].mean)
    if not found[best].real:
        raise LabelSourceError(
            "no known order of image ids fits the labels",
            where=request.folder.root,
            expected="labels of the same image to agree between epochs 0 and 1",
            got=_sentence(found),
            hint="check --images and --sampler-seed, or force an order with --torch-era",
        )
    notes.found.append(_sentence(found))
    notes.assumed.append(
        f"image ids of {seeded}, {_ERA_NAMES[best]}, which fits the labels; `verify --teacher` can prove it"
    )
    return best


def _sentence(found: dict[Era, Agreement]) -> str:
    parts = [f"{of.mean:.2f} +- {of.error:.2f} if {era}, {of.pairs} pairs" for era, of in found.items()]
    return f"agreement of labels of the same image is {'; '.join(parts)}"


def agreement_by_era(request: Request, batch_size: int) -> dict[Era, Agreement]:
    """Compare some rows of epochs 0 and 1; return nothing if there are too few to tell."""
    images = len(request.images)
    # m rows of each epoch have m * m / images images in common.
    batches = math.ceil(math.sqrt(WANTED_PAIRS * images) / batch_size)
    first, second = (_rows(request, epoch, batches, batch_size) for epoch in (0, 1))
    if first is None or second is None:
        return {}
    similarity = first[0] @ second[0].T
    found = {}
    for era in ERAS:
        orders = SampledOrders(images, era=era, seed=request.options.sampler_seed)
        ids, others = orders[0][first[1]], orders[1][second[1]]
        matched = similarity[ids[:, None] == others[None, :]]
        if len(matched) < ENOUGH_PAIRS:
            return {}
        error = float(matched.std() / math.sqrt(len(matched)))
        found[era] = Agreement(mean=float(matched.mean()), error=error, pairs=len(matched))
    return found


def _rows(
    request: Request, epoch: int, batches: int, batch_size: int
) -> tuple[npt.NDArray[np.float32], IntArray] | None:
    """Return some rows of an epoch: their directions and places.

    Directions: float32 [n, C], label minus row and column mean, length 1. Places: int32 [n], position in the
    epoch of the image that makes most of each view.
    """
    labels: list[npt.NDArray[np.float32]] = []
    places: list[IntArray] = []
    for key, path in request.folder.by_epoch.items():
        if key.epoch == epoch and len(labels) < batches:
            try:
                batch = read_batch_file(path, request.layout.items)
            except LabelFileError:
                continue
            labels.append(batch.labels.astype(np.float32))
            places.append(key.batch * batch_size + _dominant(batch))
    if not labels:
        return None
    rows = np.concatenate(labels)
    rows -= rows.mean(axis=1, keepdims=True)
    rows -= rows.mean(axis=0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.maximum(lengths, np.finfo(np.float32).tiny)
    return rows, np.concatenate(places)


def _dominant(batch: BatchFile) -> IntArray:
    """Return the slot of the image that a view shows most of: its own or its partner's."""
    if batch.mix is None or batch.mix.strength >= 0.5:
        return np.arange(batch.rows, dtype=np.int32)
    return batch.mix.partner
