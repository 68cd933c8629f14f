"""The dataset behind the loaders for scripts: one label batch per task, as tensors, not mixed yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from lpld_labels.errors import LabelPoolError
from lpld_labels.format.records import CutOut, ViewBatch
from lpld_labels.loader.authors.programme import Programme
from lpld_labels.loader.batch import to_tensor
from lpld_labels.loader.cursor import Task
from lpld_labels.loader.dataset import LabelBatches, Renderer
from lpld_labels.loader.decoders import TorchDecoder
from lpld_labels.pool.reader import PoolReader


class Replayed(NamedTuple):
    """A label batch of B rows on its way from a worker. Its pixels lie in slot number `slot`.

    target: int64 [B]. flip: bool [B]. image: int64 [B], row of the image table.
    coords: float32 [B, 4], the crop's top, left, height and width as fractions of the image's sides.
    cutout: float32 [B, 7], centre, height and width as fractions of the view's sides, and colour; or None.
    mix_index: int64 [B], slot of the partner. mix_lam: weight of the view itself.
    mix_bbox: CutMix's [top, left, bottom, right] in pixels. All three None where nothing was mixed,
        mix_bbox also for MixUp.
    parts: the labels, see `TorchDecoder.prepare`.
    """

    slot: int
    target: torch.Tensor
    flip: torch.Tensor
    coords: torch.Tensor
    image: torch.Tensor
    cutout: torch.Tensor | None
    mix_index: torch.Tensor | None
    mix_lam: float | None
    mix_bbox: list[int] | None
    parts: tuple[torch.Tensor, ...]


class ScriptBatches(Dataset[Replayed | LabelPoolError]):
    """Label batches by task, and what the scripts call on their dataset.

    Everything is turned into tensors by the worker: those travel in shared memory, so that no worker
    can get stuck in a pipe that nobody reads any more.
    """

    def __init__(
        self,
        pool: PoolReader,
        decoder: TorchDecoder,
        renderer: Renderer,
        programme: Programme,
        *,
        batches_per_epoch: int,
        numbered_batches: int,
    ) -> None:
        self.batch_num_per_epoch = batches_per_epoch
        self.total_num_batches = numbered_batches
        self._batches = LabelBatches(pool, decoder, renderer)
        self._programme = programme
        self._classes = pool.images.classes.astype(np.int64)
        self._sides = np.stack([pool.images.heights, pool.images.widths] * 2, axis=1)
        augmentation = pool.header.augmentation
        self._view = np.array([augmentation.output_height, augmentation.output_width] * 2)

    def set_epoch(self, epoch: int) -> None:
        """Play an epoch next."""
        self._programme.set_epoch(epoch)

    def set_batch(self, number: int) -> None:
        """Play one batch, in every pass until told otherwise."""
        self._programme.set_batch(number)

    def set_batch_list(self, numbers: Sequence[int], mapping: Mapping[int, int] | None = None) -> None:
        """Play these batches in this order; what the script knows of their images is not needed."""
        del mapping
        self._programme.set_batch_list(numbers)

    def __getitem__(self, task: Task) -> Replayed | LabelPoolError:
        prepared = self._batches[task]
        if isinstance(prepared, LabelPoolError):
            return prepared
        views = prepared.views
        return Replayed(
            slot=prepared.buffer,
            target=torch.from_numpy(self._classes[views.images]),
            flip=torch.from_numpy(views.flips.copy()),
            coords=torch.from_numpy((views.crops / self._sides[views.images]).astype(np.float32)),
            image=torch.from_numpy(views.images.astype(np.int64)),
            cutout=None if views.cutout is None else self._cutout_rows(views.cutout),
            **_mix(views),
            parts=tuple(to_tensor(part) for part in prepared.parts),
        )

    def _cutout_rows(self, cutout: CutOut) -> torch.Tensor:
        first, last = cutout.boxes[:, :2], cutout.boxes[:, 2:]
        rows: npt.NDArray[Any] = np.concatenate([(first + last) / 2, last - first], axis=1) / self._view
        return torch.from_numpy(np.concatenate([rows, cutout.fill], axis=1).astype(np.float32))


def _mix(views: ViewBatch) -> dict[str, Any]:
    mix = views.mix
    if mix is None:
        return {"mix_index": None, "mix_lam": None, "mix_bbox": None}
    return {
        "mix_index": torch.from_numpy(mix.partner.astype(np.int64)),
        "mix_lam": mix.strength,
        "mix_bbox": None if mix.box is None else list(mix.box),
    }
