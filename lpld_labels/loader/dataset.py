"""Preparing one label batch, or the rows of it that this process takes: the part that runs in workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from lpld_labels.codecs.base import Parts
from lpld_labels.errors import LabelPoolError, PoolCorruptError
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.records import CutOut, ViewBatch
from lpld_labels.loader.cursor import Task
from lpld_labels.loader.decoders import TorchDecoder
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render import ImageStore, apply_views

Slots = npt.NDArray[np.int64]


class Prepared(NamedTuple):
    """n rows of a label batch on their way to the training process.

    slots: int64 [n], which rows. views: these rows first; behind them, where not all were asked for,
    partners they are mixed with. parts: see `TorchDecoder.prepare`, of the n rows. pixels: None where
    they lie in buffer number `buffer`.
    """

    slots: Slots
    views: ViewBatch
    parts: Parts
    buffer: int
    pixels: torch.Tensor | None

    @property
    def rows(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, kw_only=True, eq=False)
class Renderer:
    """Makes the pixels of label batches, in memory that the workers share with the training process.

    buffers: uint8 or float32 [S, B, H, W, 3]; each task writes into the one it is given. Passing pixels
        on this way costs no copy and no fresh memory.
    mixed: False leaves out CutMix and MixUp, for trainers that do it themselves.
    """

    store: ImageStore
    augmentation: Augmentation
    buffers: torch.Tensor
    mixed: bool = True

    @staticmethod
    def allocate(
        augmentation: Augmentation, batch_size: int, *, count: int, mixed: bool, shared: bool
    ) -> torch.Tensor:
        """Allocate buffers for label batches: uint8 unless MixUp makes fractions of the pixels."""
        fractions = mixed and augmentation.mix == "mixup"
        shape = (count, batch_size, augmentation.output_height, augmentation.output_width, 3)
        buffers = torch.empty(shape, dtype=torch.float32 if fractions else torch.uint8)
        if shared:
            buffers.share_memory_()  # type: ignore[no-untyped-call]  # torch does not annotate it
        return buffers

    def render(self, views: ViewBatch, buffer: int) -> torch.Tensor | None:
        """Write the pixels into a buffer, or return them where they do not fit its dtype."""
        wanted = views if self.mixed else replace(views, mix=None)
        fractions = wanted.mix is not None and wanted.mix.box is None
        if fractions and self.buffers.dtype == torch.uint8:
            return apply_views(wanted, self.store, self.augmentation, inside=True)
        out = self.pixels(buffer, views.rows)
        apply_views(wanted, self.store, self.augmentation, dtype=out.dtype, out=out, inside=True)
        return None

    def pixels(self, buffer: int, rows: int) -> torch.Tensor:
        """Return the pixels in a buffer: [rows, 3, H, W], channels-last."""
        return self.buffers[buffer, :rows].permute(0, 3, 1, 2)


class LabelBatches(Dataset[Prepared | LabelPoolError]):
    """The label batches of a pool, by task. Errors are returned, so that they arrive as they were."""

    def __init__(self, pool: PoolReader, decoder: TorchDecoder, renderer: Renderer | None) -> None:
        self._pool = pool
        self._decoder = decoder
        self._renderer = renderer

    def expect(self, places: Iterable[int]) -> None:
        """Say which label batches will be asked for, in this order; those elsewhere are fetched ahead."""
        self._pool.expect(places)

    def reached(self) -> None:
        """Say that the next of them is about to be prepared."""
        self._pool.reached()

    def __len__(self) -> int:
        """Number of label batches in the pool."""
        return len(self._pool)

    def __getitem__(self, task: Task) -> Prepared | LabelPoolError:
        """Read, take apart and render one label batch."""
        try:
            return self._prepare(task)
        except LabelPoolError as error:
            return error

    def _prepare(self, task: Task) -> Prepared:
        encoded = self._pool.encoded_at(task.place)
        views = encoded.views
        try:
            parts = self._decoder.prepare(encoded.payload, views.rows)
        except PoolCorruptError as error:
            where = f"{self._pool.location}, {views.key}"
            raise PoolCorruptError(
                error.problem, where=where, expected=error.expected, got=error.got, hint=error.hint
            ) from None
        slots = np.arange(views.rows)
        if task.runs not in (None, ((0, views.rows),)):
            slots = np.concatenate([slots[start:stop] for start, stop in task.runs or ()])
            views = take_views(views, slots)
            parts = tuple(part[slots] for part in parts)
        pixels = self._renderer.render(views, task.buffer) if self._renderer is not None else None
        return Prepared(slots=slots, views=views, parts=parts, buffer=task.buffer, pixels=pixels)


def take_views(views: ViewBatch, slots: Slots) -> ViewBatch:
    """Return some views of a label batch, followed by the partners they are mixed with.

    slots: int64 [n], all different. The first n views look the same as in the whole batch; those behind
    them are mixed with themselves.
    """
    order, mix = slots, views.mix
    if mix is not None:
        partners = mix.partner[slots]
        order = np.concatenate([slots, np.setdiff1d(partners, slots)])
        moved = np.empty(views.rows, np.int32)
        moved[order] = np.arange(len(order))
        own = np.arange(len(slots), len(order), dtype=np.int32)
        mix = replace(mix, partner=np.concatenate([moved[partners], own]))
    cutout = views.cutout
    return ViewBatch(
        key=views.key,
        images=views.images[order],
        crops=views.crops[order],
        flips=views.flips[order],
        mix=mix,
        cutout=None if cutout is None else CutOut(boxes=cutout.boxes[order], fill=cutout.fill[order]),
        patch_order=None if views.patch_order is None else views.patch_order[order],
    )
