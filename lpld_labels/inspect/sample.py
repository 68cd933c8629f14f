"""Counts over a whole pool, and statistics of the labels in a random sample of its batches.

The sample depends only on the number of batches, so two reports on a pool agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.label_semantics import softened
from lpld_labels.errors import PoolCorruptError
from lpld_labels.exec.job import Progress
from lpld_labels.format.images import ImageTable
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import BatchKey, LabelArray, ViewBatch
from lpld_labels.inspect.summary import PoolSummary
from lpld_labels.pool.publish import views_per_image
from lpld_labels.pool.reader import PoolReader

MOST_ROWS = 8192
MOST_VALUES = 1 << 23  # 8,388 rows of 1000 classes, or 803 rows of 10,450 classes.
ROWS_AT_ONCE = 128  # Bounds memory: 1024 rows of 10,450 classes are 86 MB as float64.
LEAST_BATCHES = 4
STRONGEST = 5
OWN, PARTNER, OTHER = 0, 1, 2
_SEED = 18
Counts = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolFacts:
    """Counts over a whole pool.

    names: class names [C]. image_views: int64 [images], number of views of each image, without its uses as a
    mix partner. class_images, class_views: int64 [C], number of images and of views of each class.
    epochs: epochs that have batches, ascending. epoch_batches: number of batches in each of these epochs.
    """

    summary: PoolSummary
    names: Sequence[str]
    images: ImageTable
    image_views: Counts
    class_images: Counts
    class_views: Counts
    epochs: Counts
    epoch_batches: Counts


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Statistics of labels. whole: whether all batches are read. rows: see `row_type`. unreadable: errors."""

    keys: Sequence[BatchKey]
    whole: bool
    rows: np.recarray[Any, Any]
    unreadable: tuple[str, ...]


def row_type(classes: int) -> np.dtype[Any]:
    """Return the dtype of a sampled row: a view and statistics of its label."""
    strongest = min(STRONGEST, classes)
    return np.dtype(
        [
            ("batch", "i8"),  # index into Sample.keys
            ("slot", "i8"),
            ("image", "i8"),
            ("partner", "i8"),  # the partner's image, -1 where nothing was mixed
            ("area", "f8"),  # area of the crop as a share of the image's area
            ("strength", "f8"),  # weight of the view in its mix, NaN where nothing was mixed
            ("confidence", "f8"),  # largest probability at temperature 1; NaN if the label is not finite
            ("entropy", "f8"),  # in bits, at temperature 1; NaN if the label is not finite
            ("agreement", "i8"),  # whose class is the strongest: OWN, PARTNER or OTHER
            ("constant", "?"),  # all values are equal
            ("total", "f8"),  # sum of the probabilities as stored, 1 for logits
            ("top", "i8", (strongest,)),  # the strongest classes
            ("shares", "f8", (strongest,)),  # probabilities of the strongest classes
            ("values", "f8", (strongest,)),  # stored values of the strongest classes
        ]
    )


def gather_facts(pool: PoolReader) -> PoolFacts:
    """Return counts over an open pool. Reads the index and the image ids of all views."""
    images = pool.images
    views = views_per_image(pool)
    # Image folders may have more classes than labels have columns.
    width = max(pool.classes, int(images.classes.max(initial=-1)) + 1)
    epochs, batches = np.unique(pool.index.epochs, return_counts=True)
    return PoolFacts(
        summary=PoolSummary(location=pool.location, manifest=pool.manifest),
        names=_class_names(images, width),
        images=images,
        image_views=views,
        class_images=np.bincount(images.classes, minlength=width).astype(np.int64),
        class_views=np.bincount(images.classes, weights=views, minlength=width).astype(np.int64),
        epochs=epochs.astype(np.int64),
        epoch_batches=batches.astype(np.int64),
    )


def take_sample(pool: PoolReader, *, progress: Progress | None = None) -> Sample:
    """Measure the labels of randomly chosen batches."""
    chosen = choose_batches(pool, pool.keys)
    parts = [np.zeros(0, row_type(pool.classes))]
    keys: list[BatchKey] = []
    unreadable: list[str] = []
    for done, key in enumerate(chosen, 1):
        try:
            views, labels = pool.read_views(key), pool.read_labels(key)
        except PoolCorruptError as error:
            unreadable.append(str(error))
            continue
        blocks = [slice(start, start + ROWS_AT_ONCE) for start in range(0, views.rows, ROWS_AT_ONCE)]
        parts += [_measure(pool, views, block, labels, len(keys)) for block in blocks]
        keys.append(key)
        if progress is not None:
            progress(done, len(chosen))
    return Sample(
        keys=keys,
        whole=len(chosen) == len(pool),
        rows=np.concatenate(parts).view(np.recarray),
        unreadable=tuple(unreadable),
    )


def choose_batches(pool: PoolReader, keys: Sequence[BatchKey]) -> list[BatchKey]:
    """Return a sorted random sample of `keys`, as large as the limits of this module allow."""
    limit = min(MOST_ROWS, MOST_VALUES // pool.classes)
    order = keyed_generator(_SEED, len(keys)).permutation(len(keys))
    rows = pool.index.rows[pool.index.numbers(keys)][order].cumsum(dtype=np.int64)
    count = max(int(np.searchsorted(rows, limit)) + 1, LEAST_BATCHES)
    return sorted(keys[place] for place in order[:count].tolist())


def probabilities(labels: LabelArray, kind: str, temperature: float = 1.0) -> Doubles:
    """Return labels [B, C] as float64 probabilities at a temperature. Rows that are not finite become NaN."""
    values = np.asarray(labels, np.float32)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weights = softened(values, kind, temperature).astype(np.float64)
    weights[~np.isfinite(values).all(axis=1)] = np.nan
    return weights


def entropy(shares: Doubles) -> Doubles:
    """Return the entropy of probabilities [B, C] in bits: float64 [B]; 0 log 0 is 0."""
    terms = shares * np.log2(np.where(shares > 0, shares, 1.0))
    return np.asarray(np.abs(terms.sum(axis=1)))


def _measure(
    pool: PoolReader, views: ViewBatch, part: slice, labels: LabelArray, batch: int
) -> npt.NDArray[Any]:
    kind, images, mix = pool.header.label_kind, pool.images, views.mix
    values = np.asarray(labels[part], np.float64)
    shares = probabilities(values, kind)
    # Sort by the stored values: softmax may round different values to the same probability.
    top = np.argsort(-values, axis=1, kind="stable")[:, :STRONGEST]
    shown = views.images[part]
    rows = np.zeros(len(shown), row_type(pool.classes))
    rows["batch"] = batch
    rows["slot"] = part.start + np.arange(len(shown))
    rows["image"] = shown
    rows["partner"] = -1 if mix is None else views.images[mix.partner[part]]
    pixels = images.heights[shown].astype(np.float64) * images.widths[shown]
    rows["area"] = views.crops[part, 2].astype(np.float64) * views.crops[part, 3] / pixels
    rows["strength"] = np.nan if mix is None else mix.strength
    rows["entropy"] = entropy(shares)
    own = images.classes[shown]
    partner = own if mix is None else images.classes[rows["partner"]]
    rows["agreement"] = np.where(top[:, 0] == own, OWN, np.where(top[:, 0] == partner, PARTNER, OTHER))
    rows["constant"] = values.max(axis=1) == values.min(axis=1)
    rows["total"] = values.sum(axis=1) if kind == "probabilities" else 1
    rows["top"] = top
    rows["shares"] = np.take_along_axis(shares, top, axis=1)
    rows["confidence"] = rows["shares"][:, 0]
    rows["values"] = np.take_along_axis(values, top, axis=1)
    return rows


def _class_names(images: ImageTable, classes: int) -> list[str]:
    """Return the name of every class: the directory of its images, else "class N"."""
    names = [f"class {number}" for number in range(classes)]
    for path, label in zip(reversed(images.paths), reversed(images.classes.tolist()), strict=True):
        directory, slash, _ = path.partition("/")
        if slash:
            names[label] = directory
    return names
