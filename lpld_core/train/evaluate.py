"""Accuracy on an image folder: centre views, top-1 and top-5."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lpld_core.images import centre_view, map_ahead
from lpld_core.train.ranks import ALONE, Ranks
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.render import normalise
from lpld_labels.render.decode import decode_image
from lpld_labels.render.images import class_names, list_images, read_file

BATCH = 128
KEEP_BYTES = 2 * 1024**3
"""Views are kept between evaluations while they fit; larger sets are decoded every time."""


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Shares of images whose true class is the first, or among the first five."""

    top1: float
    top5: float
    images: int


class ValidationSet:
    """The images of a folder as centre views of one size.

    size: height and width of a view. The class order is that of the folder.
    by_order: class folders may have other names than those of the training images; their order counts.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        size: tuple[int, int],
        workers: int = 2,
        by_order: bool = False,
    ) -> None:
        self.root = Path(root)
        self.class_names = class_names(root)
        self.classes = len(self.class_names)
        self._by_order = by_order
        self._paths, labels = list_images(root)
        self._labels = torch.from_numpy(np.asarray(labels, np.int64))
        self._size = size
        self._workers = workers
        self._kept: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self._paths)

    def require_classes(self, classes: int, names: Sequence[str] | None = None) -> None:
        """Refuse a folder whose classes are not those of the training.

        names: of their folders, in order, where they are known.
        """
        if self.classes != classes:
            raise InvalidArgumentError(
                "validation folder and labels differ in their number of classes",
                where=self.root,
                expected=f"{classes} class folders",
                got=self.classes,
            )
        if names is None or self._by_order or list(names) == self.class_names:
            return
        first = next(n for n, name in enumerate(names) if name != self.class_names[n])
        raise InvalidArgumentError(
            f"class folders have other names than those of the training images, first class {first}",
            where=self.root,
            expected=names[first],
            got=self.class_names[first],
            hint="give the folder of the same classes, or say --val-by-order if they come in the same order",
        )

    @torch.inference_mode()
    def accuracy(
        self,
        model: nn.Module,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        ranks: Ranks = ALONE,
        progress: Progress | None = None,
    ) -> Accuracy:
        """Evaluate a model, which is left in the mode it was in.

        ranks: processes that do it together, each a part of the images, with the first one's model.
        """
        ranks.copy_from_first(model)
        device = next(model.parameters()).device
        was_training = model.training
        model.eval()
        dtype = next(model.parameters()).dtype
        top1 = top5 = 0
        starts = range(ranks.rank * BATCH, len(self), ranks.world * BATCH)
        for start, views in zip(starts, self._views(starts), strict=True):
            logits = model(normalise(views.to(device), mean, std).to(dtype)).float().cpu()
            labels = self._labels[start : start + len(views), None]
            ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels
            top1 += int(ranked[:, 0].sum())
            top5 += int(ranked.sum())
            if progress is not None:
                progress(start + len(views), len(self))
        model.train(was_training)
        right = ranks.sum(torch.tensor([top1, top5]))
        return Accuracy(top1=int(right[0]) / len(self), top5=int(right[1]) / len(self), images=len(self))

    def _views(self, starts: range) -> list[torch.Tensor] | Iterator[torch.Tensor]:
        """Yield views uint8 [B, 3, H, W] from some places of the folder on, always the same ones."""
        if self._kept:
            return self._kept
        decoded = map_ahead(self._decode, starts, workers=self._workers, ahead=self._workers + 1)
        if len(self) * self._size[0] * self._size[1] * 3 > KEEP_BYTES:
            return decoded
        self._kept = list(decoded)
        return self._kept

    def _decode(self, start: int) -> torch.Tensor:
        paths = [self.root / path for path in self._paths[start : start + BATCH]]
        views = [centre_view(decode_image(read_file(path), where=path), self._size) for path in paths]
        return torch.stack(views).permute(0, 3, 1, 2)
