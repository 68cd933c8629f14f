"""Make the batches that loaders yield: slice label batches, normalise pixels, decode labels."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lpld_labels.codecs import Codec
from lpld_labels.codecs.base import Parts
from lpld_labels.codecs.label_semantics import softened
from lpld_labels.errors import InvalidBatchError, LabelPoolError
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.loader.workers import LabelBatches, Prepared
from lpld_labels.render.apply import normalise
from lpld_labels.render.device import DeviceReplay, send

Integers = npt.NDArray[np.int64]
Temperature = float | Callable[[int], float]
"""A number, or a function of the training epoch."""


class PoolBatch(NamedTuple):
    """A training batch. Its B rows may come from several label batches.

    images: float32 [B, 3, H, W], channels-last; mixed and normalised as the teacher saw them (or pixels
        0..255, see `pool_loader`).
    labels: float32 [B, C]; logits, or probabilities if the pool holds them or a temperature was given. Hard
        labels are probabilities: mix_strength at the target, the rest at the partner's.
    targets: int64 [B]; class of each view's own image.
    partner_targets: int64 [B]; class of the image mixed in; equals targets where nothing was mixed.
    mix_strength: float32 [B]; weight of the view itself, 1 where nothing was mixed.
    keys: int64 [B, 3]; epoch, batch and slot of each row in the pool. With hard labels, an epoch is a pass
        over the images.
    """

    images: torch.Tensor
    labels: torch.Tensor
    targets: torch.Tensor
    partner_targets: torch.Tensor
    mix_strength: torch.Tensor
    keys: torch.Tensor

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PoolBatch:
        """Return the batch with every tensor on a device."""
        return PoolBatch(*(tensor.to(device, non_blocking=non_blocking) for tensor in self))


@dataclass(frozen=True, kw_only=True, eq=False)
class UndecodedBatch:
    """One label batch for trainers with their own image pipeline.

    views: images, crops, flips and mix (NumPy). targets: int64 [B], classes of the images.
    parts: the undecoded labels, as returned by `Codec.split`; first dimension B.
    """

    views: ViewBatch
    targets: npt.NDArray[np.int64]
    parts: Parts
    codec: Codec

    @property
    def key(self) -> BatchKey:
        return self.views.key

    def labels(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return the decoded labels on a device: float32 [B, C]."""
        return self.codec.join(tuple(as_tensor(part).to(device) for part in self.parts))


class Rows(NamedTuple):
    """A label batch on the training device. facts: the PoolBatch fields that follow `labels`."""

    pixels: torch.Tensor
    parts: tuple[torch.Tensor, ...]
    facts: tuple[torch.Tensor, ...]


@dataclass(kw_only=True, eq=False)
class BatchMaker:
    """Cuts a stream of label batches into training batches on a device.

    normalisation: (mean, std), or None for raw pixels. temperature: softmax temperature; None: no softmax.
    memory: provides unpinned CPU memory for images. replay: renders the views; None: workers do.
    """

    prepared: Iterator[Prepared]
    batches: LabelBatches
    classes: npt.NDArray[np.int64]
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None
    temperature: Temperature | None
    pin_memory: bool
    memory: BufferPool
    device: torch.device
    replay: DeviceReplay | None = None
    _current: Rows | None = None
    _start: int = 0
    _ahead: SideStream | None = None

    def __post_init__(self) -> None:
        if self.device.type == "cuda" and torch.cuda.is_available():
            self._ahead = SideStream(self.device, [] if self.replay is None else self.replay.tensors())

    def make(self, rows: int | None, epoch: int) -> PoolBatch:
        """Return a batch of the next `rows` rows. rows: None for all rows left in the label batch."""
        if rows is None:
            rows = len(self._left().pixels) - self._start
        images = self._empty_images(rows)
        labels, rest = [], []
        filled = 0
        while filled < rows:
            # Fetch the next label batch only when this one is used up: fetching may reuse its buffer.
            source = self._left()
            part = slice(self._start, min(self._start + rows - filled, len(source.pixels)))
            self._finish(source.pixels[part], images[filled : filled + part.stop - part.start])
            labels.append(self._labels(source, part))
            rest.append([array[part] for array in source.facts])
            filled += part.stop - part.start
            self._start = part.stop
        facts = (_joined(list(parts)) for parts in zip(*rest, strict=True))
        joined = _joined(labels)
        if source.parts:  # an epoch's label batches are all stored, or all fresh
            joined = self._softened(joined, epoch)
        return PoolBatch(images, joined, *facts)

    def _left(self) -> Rows:
        """Return the current label batch, or the next one if no rows are left."""
        if self._current is None or self._start == len(self._current.pixels):
            self._current = self._rows() if self._ahead is None else self._ahead.take(self._rows)
            self._start = 0
        return self._current

    def _rows(self) -> Rows:
        item = next(self.prepared)
        views, rows = item.views, len(item.slots)
        facts = view_facts(views, item.slots, self.classes)
        tensors = [*facts, *(as_tensor(part) for part in item.parts)]
        if self.replay is None:
            rendered = item.pixels if item.pixels is not None else self.batches.pixels(item.buffer, rows)
            tensors.append(rendered[:rows].permute(0, 2, 3, 1))
        sent = send(tensors, self.device)
        pixels = sent.pop().permute(0, 3, 1, 2) if self.replay is None else self.replay.render(views)[:rows]
        return Rows(pixels=pixels, parts=tuple(sent[len(facts) :]), facts=tuple(sent[: len(facts)]))

    def _empty_images(self, rows: int) -> torch.Tensor:
        how = self.batches.pool.header.augmentation
        height, width = how.output_height, how.output_width
        dtype = self.batches.buffers.dtype if self.normalisation is None else torch.float32
        on_cpu = self.device.type == "cpu"
        if on_cpu and not self.pin_memory:
            return self.memory.images(rows, height, width, dtype)
        flat = torch.empty((rows, height, width, 3), dtype=dtype, device=self.device, pin_memory=on_cpu)
        return flat.permute(0, 3, 1, 2)

    def _finish(self, pixels: torch.Tensor, images: torch.Tensor) -> None:
        """Write pixels, normalised if requested, into `images`, which are rows of a batch."""
        if self.normalisation is not None:
            normalise(pixels, *self.normalisation, out=images)
        elif torch.promote_types(pixels.dtype, images.dtype) == images.dtype:
            images.copy_(pixels)
        else:
            raise InvalidBatchError(
                "a batch uses MixUp, which the pool's header does not declare: its pixels are not integers",
                expected=images.dtype,
                got=pixels.dtype,
                hint="pass normalise=True",
            )

    def _labels(self, source: Rows, part: slice) -> torch.Tensor:
        pool = self.batches.pool
        if source.parts:
            return pool.codec.join(tuple(array[part] for array in source.parts))
        own, partner, strength = (fact[part, None] for fact in source.facts[:3])
        labels = torch.zeros(len(own), pool.classes, device=own.device).scatter_(1, own, strength)
        return labels.scatter_add_(1, partner, 1 - strength)

    def _softened(self, labels: torch.Tensor, epoch: int) -> torch.Tensor:
        if self.temperature is None:
            return labels
        value = self.temperature(epoch) if callable(self.temperature) else self.temperature
        return softened(labels, self.batches.pool.header.label_kind, value)


class SideStream:
    """Prepares the next label batch on a separate CUDA stream while the trainer uses the current one.

    used: tensors that the stream reads. If they are freed, their memory is not reused while the stream works.
    """

    def __init__(self, device: torch.device, used: Sequence[torch.Tensor]) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._stream.wait_stream(torch.cuda.current_stream(device))  # for `used`
        for tensor in used:
            tensor.record_stream(self._stream)
        self._next: Rows | LabelPoolError | None = None

    def take(self, make: Callable[[], Rows]) -> Rows:
        """Return the next rows, for use on the current stream, and start preparing the rows after them."""
        rows = self._next or self._begin(make)
        if isinstance(rows, LabelPoolError):
            raise rows
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in (rows.pixels, *rows.parts, *rows.facts):
            tensor.record_stream(current)  # its memory is not reused before `current` is done with it
        self._next = self._begin(make)
        return rows

    def _begin(self, make: Callable[[], Rows]) -> Rows | LabelPoolError:
        with torch.cuda.stream(self._stream):
            try:
                return make()
            except LabelPoolError as error:
                return error  # of the next rows, so `take` raises it when they are due


class BufferPool:
    """Reuses image memory once no tensor refers to it. Keeps at most `keep` free blocks.

    Page faults in fresh memory take longer than writing a batch of images to it.
    """

    def __init__(self, *, keep: int = 2) -> None:
        self._keep = keep
        self._free: list[npt.NDArray[np.uint8]] = []

    def images(self, rows: int, height: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised [rows, 3, height, width] tensor in channels-last layout."""
        needed = rows * height * width * 3 * dtype.itemsize
        # Unlike torch, NumPy requests huge pages for large arrays.
        block = self._free.pop() if self._free else np.empty(needed, np.uint8)
        if block.nbytes < needed:
            block = np.empty(needed, np.uint8)
        lent = block[:needed]
        # The tensor's storage refers to `lent` until the last view of the tensor is gone.
        weakref.finalize(lent, self._give_back, block).atexit = False
        pixels = torch.from_numpy(lent).view(dtype)
        return pixels.view(rows, height, width, 3).permute(0, 3, 1, 2)

    def _give_back(self, block: npt.NDArray[np.uint8]) -> None:
        if len(self._free) < self._keep:
            self._free.append(block)


def view_facts(views: ViewBatch, slots: Integers, classes: Integers) -> tuple[torch.Tensor, ...]:
    """Return the PoolBatch fields that follow `labels`. views: views at `slots`, then their mix partners."""
    targets, rows = classes[views.images], len(slots)
    partners = targets if views.mix is None else targets[views.mix.partner]
    keys = np.empty((rows, 3), np.int64)
    keys[:, 0], keys[:, 1] = views.key
    keys[:, 2] = slots
    return (
        torch.from_numpy(targets[:rows]),
        torch.from_numpy(partners[:rows]),
        torch.full((rows,), 1.0 if views.mix is None else views.mix.strength),
        torch.from_numpy(keys),
    )


def as_tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
    """Return a tensor that shares the array's memory, or a copy if the array is read-only."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
