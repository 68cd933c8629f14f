"""What is known of a whole pool without reading a label: names, counts, coverage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lpld_labels.format.images import ImageTable
from lpld_labels.inspect.summary import PoolSummary, summarise
from lpld_labels.pool.reader import PoolReader

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolFacts:
    """A pool as a whole.

    names: of the classes [C]. image_views: int64 [images], how often each was seen as itself.
    class_images, class_views: int64 [C]. epochs: the epochs that have a batch, ascending;
    epoch_batches: int64, how many each has.
    """

    summary: PoolSummary
    names: Sequence[str]
    images: ImageTable
    image_views: Counts
    class_images: Counts
    class_views: Counts
    epochs: Counts
    epoch_batches: Counts


def gather_facts(pool: PoolReader, *, names: Sequence[str] | None = None) -> PoolFacts:
    """Return the facts of an open pool. Reads the manifest, the index and which image each view shows.

    names: of the classes, where better ones are known than the image folder's directories.
    """
    images = pool.images
    views = views_by_image(pool)
    # Image folders may have more classes than labels have columns; their images count all the same.
    width = max(pool.classes, int(images.classes.max(initial=-1)) + 1)
    epochs, batches = np.unique(pool.index.epochs, return_counts=True)
    return PoolFacts(
        summary=summary_of(pool),
        names=class_labels(images, width, names),
        images=images,
        image_views=views,
        class_images=np.bincount(images.classes, minlength=width).astype(np.int64),
        class_views=np.bincount(images.classes, weights=views, minlength=width).astype(np.int64),
        epochs=epochs.astype(np.int64),
        epoch_batches=batches.astype(np.int64),
    )


def summary_of(pool: PoolReader) -> PoolSummary:
    """Return what `inspect` says of an open pool."""
    return summarise(pool.location)


def views_by_image(pool: PoolReader) -> Counts:
    """Return how many views each image has as itself: int64 [images]."""
    views = np.zeros(pool.manifest.counts.images, np.int64)
    for number in range(len(pool)):
        # Not bincount: a batch shows few of the images, and there may be very many batches.
        np.add.at(views, pool.images_at(number), 1)
    return views


def class_labels(images: ImageTable, classes: int, given: Sequence[str] | None = None) -> list[str]:
    """Return a name for every class: as given, else its image directory's, else its number."""
    names = [f"class {number}" for number in range(classes)]
    for path, label in zip(reversed(images.paths), reversed(images.classes.tolist()), strict=True):
        directory, slash, _ = path.partition("/")
        if slash:
            names[label] = directory
    for number, name in enumerate((given or ())[:classes]):
        names[number] = name
    return names
