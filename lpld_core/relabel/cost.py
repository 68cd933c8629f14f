"""What a build costs: views, teacher forwards and bytes, from its settings and the bytes of a row."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lpld_labels.pool.sizes import PoolSize
from lpld_labels.transforms.selection import kept_count

VIEW_BYTES = 13.0
"""Of a view that is stored: the crops, flips and mixes of ImageNet-1K's recipe."""
_IMAGE_BYTES = 60
_MANIFEST_BYTES = 6_000


@dataclass(frozen=True, kw_only=True)
class LabelCost:
    """What it takes to label a folder.

    forwards: images that go through a teacher, counted for each teacher.
    staged_bytes: on the shared disk just before the commit; it moves files and copies none but small ones.
    final_bytes: of the pool.
    """

    batches: int
    views: int
    forwards: int
    staged_bytes: int
    final_bytes: int


def label_cost(
    *,
    images: int,
    epochs: int,
    batch_size: int,
    ratio: float = 1.0,
    teachers: int = 1,
    labels_per_row: float,
    views_per_row: float = VIEW_BYTES,
    drawn: bool = False,
) -> LabelCost:
    """Return what a build costs. labels_per_row, views_per_row: bytes. drawn: views are not kept."""
    if ratio == 1:
        batches, views = epochs * math.ceil(images / batch_size), epochs * images
    else:
        batches = kept_count(epochs * (images // batch_size), ratio)
        views = batches * batch_size

    def pool(view_bytes: float) -> int:
        size = PoolSize(
            fixed=_MANIFEST_BYTES + _IMAGE_BYTES * images,
            per_shard=7000,
            views_per_row=view_bytes,
            labels_per_row=labels_per_row,
            batch_size=batch_size,
        )
        return size.total(batches, rows=views)

    return LabelCost(
        batches=batches,
        views=views,
        forwards=views * teachers,
        # Views are staged in any case: they are what a drawn view is checked against.
        staged_bytes=pool(views_per_row),
        final_bytes=pool(0.0 if drawn else views_per_row),
    )
