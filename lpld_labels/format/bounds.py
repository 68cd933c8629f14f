"""Views stay inside what they are about: the image table, their images, the output."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from lpld_labels.errors import InvalidBatchError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation, PoolHeader
from lpld_labels.format.records import ViewBatch
from lpld_labels.format.schema import Views


class Frame(NamedTuple):
    """All that decides whether views may stand in a pool; those proven in one may go into its like unasked.

    sizes: digest of the sizes of its images. views: whether they are stored, or must be as they are drawn.
    """

    augmentation: Augmentation
    sizes: bytes
    seed: int | None
    batch_size: int
    views: Views


def frame_of(header: PoolHeader, images: ImageTable, views: Views) -> Frame:
    """Return what the views of a pool have to keep to."""
    sizes = hashlib.sha256(images.heights.tobytes() + images.widths.tobytes()).digest()
    return Frame(header.augmentation, sizes, header.seed, header.batch_size, views)


def check_bounds(views: ViewBatch, images: ImageTable, augmentation: Augmentation) -> None:
    """Refuse views whose images, crops or boxes reach outside; slicing would cut them without a word."""
    if int(views.images.max()) >= len(images):
        raise InvalidBatchError(
            "field 'images' is wrong",
            where=views.key,
            expected=f"indices below {len(images)}",
            got=int(views.images.max()),
            hint="these views are about other images",
        )
    sizes = np.stack([images.heights[views.images], images.widths[views.images]], axis=1)
    # Crops are >= 0, so this side of the comparison cannot overflow.
    outside = views.crops[:, 2:] > sizes - views.crops[:, :2]
    if outside.any():
        slot = int(np.argmax(outside.any(axis=1)))
        raise InvalidBatchError(
            f"crop reaches outside image {int(views.images[slot])} (slot {slot})",
            where=views.key,
            expected=f"within {sizes[slot].tolist()} (height, width)",
            got=views.crops[slot].tolist(),
        )
    limit = (augmentation.output_height, augmentation.output_width)
    corners = [] if views.mix is None or views.mix.box is None else [views.mix.box[2:]]
    if views.cutout is not None:
        corners.append(tuple(views.cutout.boxes[:, 2:].max(axis=0).tolist()))
    for bottom, right in corners:
        if bottom > limit[0] or right > limit[1]:
            raise InvalidBatchError(
                "a box reaches outside the view",
                where=views.key,
                expected=f"at most {limit}",
                got=(bottom, right),
            )
