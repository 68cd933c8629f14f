"""Accuracy on an image folder: centre views, top-1 and top-5."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from lpld_core.device import to_device
from lpld_core.images import RealFolder
from lpld_core.train.ranks import ALONE, Ranks
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.render import normalise
from lpld_labels.render.apply import centre_view
from lpld_labels.render.images import map_ahead

BATCH = 128
KEEP_BYTES = 2 * 1024**3
"""Views of up to this total size are kept between evaluations; larger sets are decoded every time."""
_WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Shares of images whose true class is the top prediction, or among the top five."""

    top1: float
    top5: float


class ValidationSet:
    """The images of a folder as centre views of one size. by_order: match classes by order, not by name."""

    def __init__(
        self, root: str | os.PathLike[str], *, size: tuple[int, int], by_order: bool = False
    ) -> None:
        self._folder = RealFolder.open(root)
        self._labels = torch.from_numpy(self._folder.labels)
        self._by_order, self._size = by_order, size
        self._kept: list[torch.Tensor] = []

    def require_classes(self, classes: int, names: Sequence[str] | None = None) -> None:
        """Refuse a folder with other classes than in training. names: class folders of training, if known."""
        folder = self._folder
        if folder.classes != classes:
            raise InvalidArgumentError(
                "validation folder and labels differ in their number of classes",
                where=folder.root,
                expected=f"{classes} class folders",
                got=folder.classes,
            )
        if names is None or self._by_order or tuple(names) == folder.class_names:
            return
        first = next(n for n, name in enumerate(names) if name != folder.class_names[n])
        raise InvalidArgumentError(
            f"class folders have different names than in training, first at class {first}",
            where=folder.root,
            expected=names[first],
            got=folder.class_names[first],
            hint="give a folder of the same classes, or use --val-by-order if their order is the same",
        )

    @torch.inference_mode()
    def accuracy(
        self, model: nn.Module, mean: Sequence[float], std: Sequence[float], *, ranks: Ranks = ALONE
    ) -> Accuracy:
        """Evaluate a model. ranks: processes that share the images; all use the first process's model."""
        ranks.copy_from_first(model)
        device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
        was_training = model.training
        model.eval()
        right = torch.zeros(2, dtype=torch.int64, device=device)
        images = len(self._folder)
        starts = range(ranks.rank * BATCH, images, ranks.world * BATCH)
        for start, views in zip(starts, self._views(starts), strict=True):
            logits = model(normalise(to_device(views, device), mean, std).to(dtype)).float()
            labels = to_device(self._labels[start : start + len(views), None], device)
            ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels
            right += torch.stack([ranked[:, 0].sum(), ranked.sum()])
        model.train(was_training)
        top1, top5 = ranks.sum(right).tolist()
        return Accuracy(top1=top1 / images, top5=top5 / images)

    def _views(self, starts: range) -> list[torch.Tensor] | Iterator[torch.Tensor]:
        """Return a batch of views, uint8 [B, 3, H, W], for each start row in `starts`."""
        if self._kept:
            return self._kept
        decoded = map_ahead(self._decode, starts, workers=_WORKERS, ahead=_WORKERS + 1)
        if len(self._folder) * self._size[0] * self._size[1] * 3 > KEEP_BYTES:
            return decoded
        self._kept = list(decoded)
        return self._kept

    def _decode(self, start: int) -> torch.Tensor:
        rows = range(start, min(start + BATCH, len(self._folder)))
        views = [centre_view(self._folder.decode(row), self._size) for row in rows]
        return torch.stack(views).permute(0, 3, 1, 2)
