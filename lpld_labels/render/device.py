"""Render whole batches of views on a device, with the pixels of `apply_views` bit for bit.

The device only copies, multiplies, adds and shifts integers (resize_weights.py), so no result depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.records import Mix, ViewBatch
from lpld_labels.render.images import THREADS, map_ahead
from lpld_labels.render.resize_weights import resize_weights, tap_count
from lpld_labels.render.store import MEMORY_BYTES, ImageStore

CHUNK_BYTES = 256 << 20
MAX_SIDE = 8192  # Resize weights of longer sides would take more than 1 GB.
_ALIGNMENT = 16


def send(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Copy CPU tensors to a device in one transfer. A copy to a GPU uses pinned memory and does not wait.

    If the device is the CPU, return `tensors` themselves. Otherwise `tensors` may be overwritten at once.
    """
    if device.type == "cpu":
        return list(tensors)
    ends = np.cumsum([-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]).tolist()
    cuda = device.type == "cuda"  # Only there does a queued copy keep `block` alive.
    block = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=cuda)

    def parts(memory: torch.Tensor) -> Iterator[torch.Tensor]:
        for tensor, start in zip(tensors, [0, *ends], strict=False):
            yield memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    for part, tensor in zip(parts(block), tensors, strict=True):
        part.copy_(tensor)
    return list(parts(block.to(device, non_blocking=cuda)))


def images_fit(table: ImageTable, device: torch.device, device_bytes: int | None) -> bool:
    """Whether decoded images fit. device_bytes: limit; None: half of a GPU's free memory, 4 GiB elsewhere."""
    if device_bytes is None:
        cuda = device.type == "cuda"
        device_bytes = torch.cuda.mem_get_info(device)[0] // 2 if cuda else MEMORY_BYTES
    needed = 3 * int((table.heights.astype(np.int64) * table.widths).sum())
    return needed <= device_bytes and max(table.heights.max(), table.widths.max()) <= MAX_SIDE


class WeightTable:
    """Resizes lines of up to `longest` pixels to `out` pixels, with weights stored on a device."""

    def __init__(self, code: str, longest: int, out: int, device: torch.device) -> None:
        self.out = out
        self.taps = [tap_count(code, side, out) for side in range(longest + 1)]
        if longest > MAX_SIDE:
            raise InvalidArgumentError(
                "an image is too large to be resized on a device",
                expected=f"sides of at most {MAX_SIDE} pixels",
                got=longest,
                hint="use replay='cpu'",
            )
        first = np.zeros((longest + 1, out), np.int64)
        weights = np.zeros((self.taps[-1], longest + 1, out), np.int32)
        shifts = np.ones((longest + 1, 1, 1), np.int32)
        for side in range(1, longest + 1):
            first[side], values, shifts[side] = resize_weights(code, side, out)
            weights[: values.shape[1], side] = values.T
        arrays = (first.reshape(-1), weights.reshape(len(weights), -1), shifts)
        self._first, self._weights, self._shifts = (torch.from_numpy(array).to(device) for array in arrays)
        self._halves = 1 << (self._shifts - 1)

    def tensors(self) -> list[torch.Tensor]:
        return [self._first, self._weights, self._shifts, self._halves]

    def resize(self, lines: torch.Tensor, sides: torch.Tensor, flips: torch.Tensor) -> torch.Tensor:
        """Resize dimension 1 of `lines`, uint8 [n, L, K], to `out` pixels. Reverse it where flips is 1.

        sides, flips: int64 [n]. sides: how many of the L lines each view has.
        """
        count, length, width = lines.shape
        order = torch.arange(self.out, device=lines.device) * (1 - 2 * flips[:, None])
        cells = ((sides + flips)[:, None] * self.out - flips[:, None] + order).view(-1)
        first = self._first.index_select(0, cells).view(count, self.out)
        base = torch.arange(0, count * length, length, device=lines.device)[:, None]
        total = self._halves.index_select(0, sides).repeat(1, self.out, width)
        for tap in range(self.taps[length]):
            # Lines past the end have weight 0.
            places = (first + tap).clamp_(max=length - 1).add_(base).view(-1)
            picked = lines.view(count * length, width).index_select(0, places).view(total.shape)
            total.addcmul_(picked, self._weights[tap].index_select(0, cells).view(count, self.out, 1))
        return total.bitwise_right_shift_(self._shifts.index_select(0, sides)).clamp_(0, 255).byte()


class DeviceReplay:
    """Renders batches of views on a device.

    device_bytes: keep decoded images on the device if they fit (see `images_fit`). Otherwise they stay in
    pinned host memory, and the images of each batch are copied to the device.

    Memory on the device is the sum of
    - images: 3 bytes per pixel, of all images or of one batch
    - resize weights: 4 bytes x longest image side x output side x source pixels per output pixel, which is
      0.6 MB from 224 to 224 px and 10 MB from 1000 px
    - work space: CHUNK_BYTES, twice that with patches, but at least 40 bytes per source pixel of a view
    """

    def __init__(
        self, store: ImageStore, how: Augmentation, device: torch.device, *, device_bytes: int | None = None
    ) -> None:
        self._device, self._size = device, (how.output_height, how.output_width)
        table = self._table = store.table
        longest = int(max(table.heights.max(), table.widths.max()))
        tables = {out: WeightTable(how.resize, longest, out, device) for out in set(self._size)}
        self._rows, self._columns = (tables[out] for out in self._size)
        self._ends = np.cumsum([0, *(table.heights.astype(np.int64) * table.widths).tolist()])
        self._resident = images_fit(table, device, device_bytes)
        self._pixels = torch.empty(
            (int(self._ends[-1]), 3),
            dtype=torch.uint8,
            device=device if self._resident else "cpu",
            pin_memory=device.type == "cuda" and not self._resident,
        )
        decoded = map_ahead(store.__getitem__, range(len(table)), workers=THREADS, ahead=THREADS)
        for start, image in zip(self._ends.tolist(), decoded, strict=False):
            pixels = torch.from_numpy(image.reshape(-1, 3))
            self._pixels[start : start + len(pixels)].copy_(pixels)

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors that stay on the device."""
        tables = [*self._rows.tensors(), *self._columns.tensors()]
        return [self._pixels, *tables] if self._resident else tables

    def render(self, views: ViewBatch) -> torch.Tensor:
        """Return the pixels of views of these images: [B, 3, H, W], uint8, or float32 for MixUp."""
        pixels, starts = self._images(views.images)
        facts = np.empty((8, views.rows), np.int64)
        # The start, height and width of each image; top, left, height, width and flip of the crop.
        facts[:3] = starts, self._table.heights[views.images], self._table.widths[views.images]
        facts[3:7], facts[7] = views.crops.T, views.flips
        # Copies, because arrays of pools are read-only.
        tiles, cutout, mix, nothing = views.patch_order, views.cutout, views.mix, np.empty(0, np.uint8)
        arrays = [
            facts,
            nothing if tiles is None else tiles.astype(np.int64),
            nothing if cutout is None else np.concatenate([cutout.boxes, cutout.fill], axis=1),
            nothing if mix is None else mix.partner.astype(np.int64),
        ]
        crops, orders, cuts, partner = send([torch.from_numpy(array) for array in arrays], self._device)
        height, width = self._size
        plain = torch.empty((views.rows, height, width, 3), dtype=torch.uint8, device=self._device)
        for chunk in self._chunks(views):
            tall, wide = views.crops[chunk, 2:].max(axis=0).tolist()
            places = _places(crops[:, chunk], tall, wide, None if tiles is None else orders[chunk])
            windows = pixels.index_select(0, places.view(-1)).view(-1, wide, tall * 3)
            heights, widths, flips = crops[5:, chunk]
            narrow = self._columns.resize(windows, widths, flips).view(-1, width, tall, 3)
            lines = narrow.transpose(1, 2).reshape(-1, tall, width * 3)
            plain[chunk] = self._rows.resize(lines, heights, flips * 0).view(-1, height, width, 3)
        if cutout is not None:
            plain = _cut_out(plain, cuts)
        if mix is not None:
            plain = _mixed(plain, mix, partner)
        return plain.permute(0, 3, 1, 2)

    def _images(self, images: npt.NDArray[np.int32]) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
        """Return the images' pixels on the device, and the offset at which each image begins."""
        starts, stops = self._ends[images], self._ends[images + 1]
        if self._resident:
            return self._pixels, starts
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        sent = [self._pixels[start:stop].to(self._device, non_blocking=True) for start, stop in spans]
        return torch.cat(sent), np.cumsum(stops - starts) - (stops - starts)

    def _chunks(self, views: ViewBatch) -> list[slice]:
        """Divide views into chunks that need at most CHUNK_BYTES, unless a single view needs more."""
        chunks, start, tall, wide = [], 0, 0, 0
        for slot, (height, width) in enumerate(views.crops[:, 2:].tolist()):
            tall, wide = max(tall, height), max(wide, width)
            each = 40 * (tall * wide + tall * self._size[1] + self._size[0] * self._size[1])
            if slot > start and each * (slot + 1 - start) > CHUNK_BYTES:
                chunks.append(slice(start, slot))
                start, tall, wide = slot, height, width
        return [*chunks, slice(start, views.rows)]


def _places(crops: torch.Tensor, tall: int, wide: int, orders: torch.Tensor | None) -> torch.Tensor:
    """Return the pixel offsets of crops by column, padded to `tall` x `wide`: int64 [n, wide, tall].

    crops: int64 [8, n], as in `render`. orders: int64 [n, tiles], patch orders; None without patches.
    """
    start, image_height, image_width, top, left, height, width = (fact[:, None, None] for fact in crops[:7])
    row = torch.arange(tall, device=start.device).minimum(height - 1) + top
    column = torch.arange(wide, device=start.device)[:, None].minimum(width - 1) + left
    if orders is not None:
        grid = round(orders.shape[1] ** 0.5)
        tile_height, tile_width = image_height // grid, image_width // grid
        in_tile = (row < grid * tile_height) & (column < grid * tile_width)
        tile_height, tile_width = tile_height.clamp(min=1), tile_width.clamp(min=1)
        tile = (row // tile_height).clamp(max=grid - 1) * grid + (column // tile_width).clamp(max=grid - 1)
        source = orders.gather(1, tile.view(len(orders), -1)).view(tile.shape)
        row = torch.where(in_tile, source // grid * tile_height + row % tile_height, row)
        column = torch.where(in_tile, source % grid * tile_width + column % tile_width, column)
    return torch.add(start + row * image_width, column)


def _cut_out(plain: torch.Tensor, cuts: torch.Tensor) -> torch.Tensor:
    """Paint a cut-out box on each view. cuts: int32 [n, 7], boxes and colours."""
    top, left, bottom, right = cuts[:, :4, None, None].unbind(1)
    row = torch.arange(plain.shape[1], device=plain.device)[:, None]
    column = torch.arange(plain.shape[2], device=plain.device)
    inside = (row >= top) & (row < bottom) & (column >= left) & (column < right)
    return torch.where(inside[..., None], cuts[:, None, None, 4:].byte(), plain)


def _mixed(plain: torch.Tensor, mix: Mix, partner: torch.Tensor) -> torch.Tensor:
    if mix.box is None:
        own = plain.float()
        other = own.index_select(0, partner).mul_(1.0 - mix.strength)
        return own.mul_(mix.strength).add_(other)
    inside = plain[:, mix.box.top : mix.box.bottom, mix.box.left : mix.box.right]
    inside.copy_(inside.index_select(0, partner))
    return plain
