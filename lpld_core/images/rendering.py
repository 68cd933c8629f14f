"""Batches with their pixels, made ahead of use by threads: shared by labelling, checking and training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

import torch

from lpld_core.images.prefetch import map_ahead
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.render import ImageStore, apply_views

V = TypeVar("V", bound=ViewBatch)


def rendered(
    keys: Iterable[BatchKey],
    views_of: Callable[[BatchKey], V],
    store: ImageStore,
    augmentation: Augmentation,
    *,
    workers: int = 1,
) -> Generator[tuple[V, torch.Tensor], None, None]:
    """Yield (views, pixels) for the keys in order; pixels [B, 3, H, W] with values 0..255.

    views_of: draws a batch of these images or reads it from a pool of them; called by one thread at a time.
    pixels: uint8, or float32 where MixUp makes fractions. Same values either way.
    """
    dtype = torch.float32 if augmentation.mix == "mixup" else torch.uint8
    one_at_a_time = threading.Lock()

    def render(key: BatchKey) -> tuple[V, torch.Tensor]:
        with one_at_a_time:
            views = views_of(key)
        return views, apply_views(views, store, augmentation, dtype=dtype, inside=True)

    return map_ahead(render, keys, workers=workers, ahead=workers + 1)
