"""How often the images of a pool are looked at."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.manifest import Coverage
from lpld_labels.format.schema import VIEW_SCHEMA
from lpld_labels.pool.reader import PoolReader


def views_per_image(pool: PoolReader, numbers: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
    """Return how many views each image has, as itself and not as a partner: int64 [images].

    numbers: of the batches to count; None for all. Reads one small column of the views.
    """
    counted = np.ones(len(pool), np.bool_)
    if numbers is not None:
        counted[:] = False
        counted[numbers] = True
    views = np.zeros(len(pool.images), np.int64)
    if pool.manifest.views == "drawn":
        for number in np.flatnonzero(counted).tolist():
            views[pool.images_at(number)] += 1
        return views
    for shard, entry in enumerate(pool.manifest.files_of("views")):
        file = pool.open_parquet(entry, VIEW_SCHEMA)
        for group in range(file.groups):
            inside = pool.index.in_rows(shard, file.starts[group], file.starts[group + 1])
            wanted = np.repeat(counted[inside], pool.index.rows[inside])
            images = file.read(group, ["image"])["image"].to_numpy()
            if len(images) != len(wanted) or not _all_below(images, len(views)):
                raise PoolCorruptError("column 'image' is wrong", where=file.where)
            views += np.bincount(images[wanted], minlength=len(views))
    return views


def coverage_of(views: npt.NDArray[np.int64], classes: npt.NDArray[np.int32]) -> Coverage:
    """Return how often images are looked at; views: int64 [images], classes: of the same images."""
    if not len(views):
        return Coverage(minimum=0, median=0.0, maximum=0, images=0, classes=0)
    return Coverage(
        minimum=int(views.min()),
        median=float(np.median(views)),
        maximum=int(views.max()),
        images=int((views > 0).sum()),
        classes=len(np.unique(classes[views > 0])),
    )


def _all_below(values: npt.NDArray[np.int32], limit: int) -> bool:
    return len(values) == 0 or (int(values.min()) >= 0 and int(values.max()) < limit)
