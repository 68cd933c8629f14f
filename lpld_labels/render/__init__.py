"""Render the views of a batch to pixels, for labelling and for training. torch is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lpld_labels.format.drawing import batches_per_epoch, draw_views
from lpld_labels.render.store import ImageStore

if TYPE_CHECKING:
    from lpld_labels.render.apply import RESIZERS, apply_views, normalise

__all__ = ["RESIZERS", "ImageStore", "apply_views", "batches_per_epoch", "draw_views", "normalise"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lpld_labels.render import apply

    return getattr(apply, name)
