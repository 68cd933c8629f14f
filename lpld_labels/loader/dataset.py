"""Preparing one label batch: the part of loading that runs in workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch.utils.data import Dataset

from lpld_labels.errors import LabelPoolError, PoolCorruptError
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.records import ViewBatch
from lpld_labels.loader.cursor import Task
from lpld_labels.loader.decoders import Parts, TorchDecoder
from lpld_labels.pool.reader import PoolReader
from lpld_labels.replay import ImageStore, apply_views


class Prepared(NamedTuple):
    """A label batch on its way to the training process.

    parts: see `TorchDecoder.prepare`. pixels: None where they lie in slot number `slot`.
    """

    views: ViewBatch
    parts: Parts
    slot: int
    pixels: torch.Tensor | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Renderer:
    """Makes the pixels of label batches, in memory that the workers share with the training process.

    slots: uint8 or float32 [S, B, H, W, 3]; each task writes into the slot it is given. Passing pixels
        on this way costs no copy and no fresh memory.
    mixed: False leaves out CutMix and MixUp, for trainers that do it themselves.
    """

    store: ImageStore
    augmentation: Augmentation
    slots: torch.Tensor
    mixed: bool = True

    @staticmethod
    def slots_for(
        augmentation: Augmentation, batch_size: int, *, count: int, mixed: bool, shared: bool
    ) -> torch.Tensor:
        """Allocate slots for label batches: uint8 unless MixUp makes fractions of the pixels."""
        fractions = mixed and augmentation.mix == "mixup"
        shape = (count, batch_size, augmentation.output_height, augmentation.output_width, 3)
        slots = torch.empty(shape, dtype=torch.float32 if fractions else torch.uint8)
        if shared:
            slots.share_memory_()  # type: ignore[no-untyped-call]  # torch does not annotate it
        return slots

    def render(self, views: ViewBatch, slot: int) -> torch.Tensor | None:
        """Write the pixels into a slot, or return them where they do not fit its dtype."""
        wanted = views if self.mixed else replace(views, mix=None)
        fractions = wanted.mix is not None and wanted.mix.box is None
        if fractions and self.slots.dtype == torch.uint8:
            return apply_views(wanted, self.store, self.augmentation)
        out = self.pixels(slot, views.rows)
        apply_views(wanted, self.store, self.augmentation, dtype=out.dtype, out=out)
        return None

    def pixels(self, slot: int, rows: int) -> torch.Tensor:
        """Return the pixels in a slot: [rows, 3, H, W], channels-last."""
        return self.slots[slot, :rows].permute(0, 3, 1, 2)


class LabelBatches(Dataset[Prepared | LabelPoolError]):
    """The label batches of a pool, by task. Errors are returned, so that they arrive as they were."""

    def __init__(self, pool: PoolReader, decoder: TorchDecoder, renderer: Renderer | None) -> None:
        self._pool = pool
        self._decoder = decoder
        self._renderer = renderer

    def __getitem__(self, task: Task) -> Prepared | LabelPoolError:
        """Read, take apart and render one label batch."""
        try:
            return self._prepare(task)
        except LabelPoolError as error:
            return error

    def _prepare(self, task: Task) -> Prepared:
        key = self._pool.index.key(task.place)
        encoded = self._pool.read_encoded(key)
        try:
            parts = self._decoder.prepare(encoded.payload, encoded.views.rows)
        except PoolCorruptError as error:
            where = f"{self._pool.location}, {key}"
            raise PoolCorruptError(
                error.problem, where=where, expected=error.expected, got=error.got, hint=error.hint
            ) from None
        pixels = None
        if self._renderer is not None:
            pixels = self._renderer.render(encoded.views, task.slot)
        return Prepared(views=encoded.views, parts=parts, slot=task.slot, pixels=pixels)
