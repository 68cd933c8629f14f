"""Render whole batches of views on a device, with the pixels of `apply_views` bit for bit.

The device only copies, multiplies, adds and shifts integers (resize_weights.py), so no result depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.records import Mix, ViewBatch
from lpld_labels.render.images import THREADS, map_ahead
from lpld_labels.render.resize_weights import side_weights, tap_count
from lpld_labels.render.store import MEMORY_BYTES, ImageStore

CHUNK_BYTES = 256 << 20
MAX_TABLE_BYTES = 1 << 30
_ALIGNMENT = 16


def send(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return CPU tensors on a device, in one copy that the host does not wait for.

    They are copied into pinned memory first, so the originals may be overwritten at once. On the CPU, return
    the tensors themselves.
    """
    if device.type == "cpu":
        return list(tensors)
    ends = np.cumsum([-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]).tolist()
    block = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")

    def parts(memory: torch.Tensor) -> Iterator[torch.Tensor]:
        for tensor, start in zip(tensors, [0, *ends], strict=False):
            yield memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    for part, tensor in zip(parts(block), tensors, strict=True):
        part.copy_(tensor)
    return list(parts(block.to(device, non_blocking=True)))


def image_bytes(table: ImageTable) -> int:
    """Return the size of all decoded images."""
    return int((table.heights.astype(np.int64) * table.widths).sum()) * 3


def room_for_images(device: torch.device) -> int:
    """Return how many bytes of images to keep on a device: half of a GPU's free memory."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else MEMORY_BYTES


class DeviceImages:
    """Decoded images as uint8 [pixels, 3], one after another: on the device, or in pinned host memory."""

    def __init__(self, store: ImageStore, device: torch.device, device_bytes: int) -> None:
        table = store.table
        self._device = device
        self._ends = np.cumsum([0, *(table.heights.astype(np.int64) * table.widths).tolist()])
        self.resident = image_bytes(table) <= device_bytes
        shape, pinned = (int(self._ends[-1]), 3), device.type == "cuda" and not self.resident
        where = device if self.resident else torch.device("cpu")
        self._pixels = torch.empty(shape, dtype=torch.uint8, device=where, pin_memory=pinned)
        decoded = map_ahead(store.__getitem__, range(len(table)), workers=THREADS, ahead=THREADS)
        for image, (start, stop) in zip(decoded, self._spans(np.arange(len(table))), strict=True):
            self._pixels[start:stop].copy_(torch.from_numpy(image.reshape(-1, 3)))

    def _spans(self, images: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        return list(zip(self._ends[images].tolist(), self._ends[images + 1].tolist(), strict=True))

    def starts(self, images: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Return where images begin in the result of `on_device(images)`."""
        if self.resident:
            return np.asarray(self._ends[images])
        distinct, inverse = np.unique(images, return_inverse=True)
        sizes = self._ends[distinct + 1] - self._ends[distinct]
        return np.asarray((np.cumsum(sizes) - sizes)[inverse.reshape(-1)])

    def on_device(self, images: npt.NDArray[np.int32]) -> torch.Tensor:
        """Return pixels on the device: those of all images, or of these ones in ascending order."""
        if self.resident:
            return self._pixels
        spans = self._spans(np.unique(images))
        sent = [self._pixels[start:stop].to(self._device, non_blocking=True) for start, stop in spans]
        return torch.cat(sent)


class WeightTable:
    """Weights that resize any side up to `longest` to `out`, on a device.

    Each tensor has longest + 1 rows (`first` and `weights`: out entries per row).
    """

    def __init__(self, code: str, longest: int, out: int, device: torch.device) -> None:
        self.out = out
        self.taps = np.array([tap_count(code, side, out) for side in range(longest + 1)])
        needed = int(self.taps[-1]) * (longest + 1) * out * 4
        if needed > MAX_TABLE_BYTES:
            raise InvalidArgumentError(
                "images are too large to be resized on a device",
                expected=f"resize weights of at most {MAX_TABLE_BYTES:,} bytes",
                got=f"{needed:,} for images of up to {longest:,} pixels a side",
                hint="render on the CPU (replay='cpu')",
            )
        first = np.zeros((longest + 1, out), np.int64)
        weights = np.zeros((int(self.taps[-1]), longest + 1, out), np.int32)
        shifts = np.ones((longest + 1, 1, 1), np.int32)
        for side in range(1, longest + 1):
            first[side], values, shifts[side] = side_weights(code, side, out)
            weights[: values.shape[1], side] = values.T
        arrays = (first.reshape(-1), weights.reshape(len(weights), -1), shifts)
        self.first, self.weights, self.shifts = (torch.from_numpy(array).to(device) for array in arrays)
        self.halves = 1 << (self.shifts - 1)

    def resize(
        self, lines: torch.Tensor, sides: torch.Tensor, order: torch.Tensor, taps: int
    ) -> torch.Tensor:
        """Resize dimension 1 of `lines`, uint8 [n, L, K], to `out`.

        sides: int64 [n], how many of the L lines count. order: int64 [n, out], output line at each place.
        """
        count, length, width = lines.shape
        cells = (sides[:, None] * self.out + order).view(-1)
        first = self.first.index_select(0, cells).view(count, self.out)
        base = torch.arange(0, count * length, length, device=lines.device)[:, None]
        total = self.halves.index_select(0, sides).repeat(1, self.out, width)
        for tap in range(taps):
            # Lines past the end have weight 0.
            places = (first + tap).clamp_(max=length - 1).add_(base).view(-1)
            picked = lines.view(count * length, width).index_select(0, places)
            weights = self.weights[tap].index_select(0, cells)
            total.addcmul_(picked.view(total.shape), weights.view(count, self.out, 1))
        total.bitwise_right_shift_(self.shifts.index_select(0, sides)).clamp_(0, 255)
        return total.to(torch.uint8)


class _Crops(NamedTuple):
    """Facts on n views, int64 [n] each: of the image (`start` in its pixels), and of the crop."""

    start: torch.Tensor
    image_height: torch.Tensor
    image_width: torch.Tensor
    top: torch.Tensor
    left: torch.Tensor
    height: torch.Tensor
    width: torch.Tensor
    flip: torch.Tensor


@dataclass(frozen=True)
class _Chunk:
    """Views to render at once, and the largest sides of their crops."""

    views: slice
    height: int
    width: int


class DeviceReplay:
    """Renders batches of views on a device.

    device_bytes: maximum size of decoded images on the device. Larger sets stay in pinned host memory, and
    each chunk's images are copied to the device. Without a value, see `room_for_images`.

    Memory on the device: the images (3 bytes per pixel); the weights, 4 bytes x longest side of an image x
    output side x pixels per weight (2 MB for 224 px from 224, 16 MB from 1000); and CHUNK_BYTES while a batch
    is rendered in chunks, or 40 bytes per source pixel of one view if that is more.
    """

    def __init__(
        self,
        store: ImageStore,
        augmentation: Augmentation,
        device: torch.device,
        *,
        device_bytes: int | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._size = (augmentation.output_height, augmentation.output_width)
        self._device = device
        self._chunk_bytes = chunk_bytes
        self._table = store.table
        longest = int(max(store.table.heights.max(), store.table.widths.max()))
        tables = {out: WeightTable(augmentation.resize, longest, out, device) for out in set(self._size)}
        self._rows, self._columns = (tables[out] for out in self._size)
        room = room_for_images(device) if device_bytes is None else device_bytes
        self._images = DeviceImages(store, device, room)

    def render(self, views: ViewBatch) -> torch.Tensor:
        """Return the pixels of views of these images: [B, 3, H, W], uint8, or float32 for MixUp."""
        chunks = self._chunks(views)
        starts = [self._images.starts(views.images[chunk.views]) for chunk in chunks]
        facts = np.empty((8, views.rows), np.int64)
        facts[0] = np.concatenate(starts)
        facts[1], facts[2] = self._table.heights[views.images], self._table.widths[views.images]
        facts[3:7], facts[7] = views.crops.T, views.flips
        # Empty arrays stand for what this batch does not have. Copies, because arrays of pools are read-only.
        nothing = np.empty((views.rows, 0), np.uint8)
        arrays = [facts, nothing, nothing, nothing, nothing]
        if views.patch_order is not None:
            arrays[1] = views.patch_order.astype(np.int64)
        if views.cutout is not None:
            arrays[2:4] = views.cutout.boxes.copy(), views.cutout.fill.copy()
        if views.mix is not None:
            arrays[4] = views.mix.partner.astype(np.int64)
        sent = send([torch.from_numpy(array) for array in arrays], self._device)
        crops, orders, boxes, fill, partner = sent

        plain = torch.empty((views.rows, *self._size, 3), dtype=torch.uint8, device=self._device)
        for chunk in chunks:
            part = _Crops(*crops[:, chunk.views].unbind())
            pixels = self._images.on_device(views.images[chunk.views])
            windows = _windows(pixels, part, chunk, orders[chunk.views])
            plain[chunk.views] = self._resized(windows, part, chunk)
        if views.cutout is not None:
            plain = _cut_out(plain, boxes, fill)
        if views.mix is not None:
            plain = _mixed(plain, views.mix, partner)
        return plain.permute(0, 3, 1, 2)

    def _resized(self, windows: torch.Tensor, crops: _Crops, chunk: _Chunk) -> torch.Tensor:
        """Resize windows [n, width, height * 3] of crops to [n, H, W, 3]; mirror those to be flipped."""
        count, (height, width) = len(windows), self._size
        column = torch.arange(width, device=windows.device)
        order = torch.where(crops.flip[:, None] > 0, width - 1 - column, column)
        taps = int(self._columns.taps[chunk.width])
        narrow = self._columns.resize(windows, crops.width, order, taps)
        lines = narrow.view(count, width, chunk.height, 3).transpose(1, 2)
        lines = lines.reshape(count, chunk.height, width * 3)
        order = torch.arange(height, device=windows.device).expand(count, height)
        resized = self._rows.resize(lines, crops.height, order, int(self._rows.taps[chunk.height]))
        return resized.view(count, height, width, 3)

    def _chunks(self, views: ViewBatch) -> list[_Chunk]:
        """Divide views into chunks that need at most `chunk_bytes`, unless a single view needs more."""
        chunks, start, height, width = [], 0, 0, 0
        for slot, (rows, columns) in enumerate(views.crops[:, 2:].tolist()):
            tall, wide = max(height, rows), max(width, columns)
            each = 40 * (tall * wide + tall * self._size[1] + self._size[0] * self._size[1])
            if slot > start and each * (slot + 1 - start) > self._chunk_bytes:
                chunks.append(_Chunk(slice(start, slot), height, width))
                start, tall, wide = slot, rows, columns
            height, width = tall, wide
        return [*chunks, _Chunk(slice(start, views.rows), height, width)]


def _windows(pixels: torch.Tensor, crops: _Crops, chunk: _Chunk, orders: torch.Tensor) -> torch.Tensor:
    """Return the crops column by column, filled up to the chunk's size: uint8 [n, width, height * 3].

    orders: int64 [n, tiles], the patch orders; [n, 0] without patches.
    """
    row = torch.arange(chunk.height, device=pixels.device).minimum(crops.height[:, None] - 1)
    column = torch.arange(chunk.width, device=pixels.device).minimum(crops.width[:, None] - 1)
    row, column = (row + crops.top[:, None])[:, None, :], (column + crops.left[:, None])[:, :, None]
    if orders.shape[1]:
        row, column = _before_shuffling(row, column, crops, orders)
    places = row * crops.image_width[:, None, None] + column + crops.start[:, None, None]
    return pixels.index_select(0, places.view(-1)).view(len(orders), chunk.width, chunk.height * 3)


def _before_shuffling(
    row: torch.Tensor, column: torch.Tensor, crops: _Crops, orders: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the pixels of shuffled images are in the stored images: int64 [n, width, height] each."""
    grid = round(orders.shape[1] ** 0.5)
    tall = (crops.image_height // grid)[:, None, None]
    wide = (crops.image_width // grid)[:, None, None]
    shuffled = (row < grid * tall) & (column < grid * wide)
    tall, wide = tall.clamp(min=1), wide.clamp(min=1)
    tiles = (row // tall).clamp(max=grid - 1) * grid + (column // wide).clamp(max=grid - 1)
    source = orders.gather(1, tiles.view(len(orders), -1)).view(tiles.shape)
    stored_row = (source // grid) * tall + row % tall
    stored_column = (source % grid) * wide + column % wide
    return torch.where(shuffled, stored_row, row), torch.where(shuffled, stored_column, column)


def _cut_out(plain: torch.Tensor, boxes: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
    top, left, bottom, right = boxes[:, :, None, None].unbind(1)
    row = torch.arange(plain.shape[1], device=plain.device)[:, None]
    column = torch.arange(plain.shape[2], device=plain.device)
    inside = (row >= top) & (row < bottom) & (column >= left) & (column < right)
    return torch.where(inside[..., None], fill[:, None, None], plain)


def _mixed(plain: torch.Tensor, mix: Mix, partner: torch.Tensor) -> torch.Tensor:
    if mix.box is None:
        own = plain.float()
        other = own.index_select(0, partner).mul_(1.0 - mix.strength)
        return own.mul_(mix.strength).add_(other)
    inside = plain[:, mix.box.top : mix.box.bottom, mix.box.left : mix.box.right]
    inside.copy_(inside.index_select(0, partner))
    return plain
