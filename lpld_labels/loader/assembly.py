"""From label batches to training batches: cut rows, normalise pixels, finish labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from lpld_labels.codecs.label_semantics import softened
from lpld_labels.errors import InvalidBatchError
from lpld_labels.loader.batch import PoolBatch, to_tensor
from lpld_labels.loader.buffers import BufferPool
from lpld_labels.loader.dataset import Prepared, Renderer
from lpld_labels.loader.decoders import TorchDecoder
from lpld_labels.loader.settings import Temperature
from lpld_labels.render import normalise


@dataclass(kw_only=True, eq=False)
class Piece:
    """Rows of a label batch, of which those from `start` on are left.

    pixels and parts are on the training device, the rest stays on the CPU.
    targets, partner_targets, keys: see `PoolBatch`.
    """

    pixels: torch.Tensor
    parts: tuple[torch.Tensor, ...]
    targets: torch.Tensor
    partner_targets: torch.Tensor
    keys: torch.Tensor
    strength: float
    start: int = 0

    @property
    def rows(self) -> int:
        return len(self.keys)


class Pieces:
    """Label batches one after the other.

    The next one is fetched only when the last is used up, for then its buffer may be written again.
    """

    def __init__(self, source: Iterator[Piece]) -> None:
        self._source = source
        self._piece: Piece | None = None

    def _current(self) -> Piece:
        if self._piece is None or self._piece.start == self._piece.rows:
            self._piece = next(self._source)
        return self._piece

    def ahead(self) -> int:
        """Return how many rows are left of the label batch that is next."""
        piece = self._current()
        return piece.rows - piece.start

    def take(self, rows: int) -> tuple[Piece, slice]:
        """Return the next rows: at least one, at most `rows`, all of one label batch."""
        piece = self._current()
        first, piece.start = piece.start, min(piece.start + rows, piece.rows)
        return piece, slice(first, piece.start)


@dataclass(frozen=True, kw_only=True, eq=False)
class Assembler:
    """Makes training batches on a device.

    classes: int64 [N], class of each image. columns: of a label row, C.
    label_kind: "logits" or "probabilities".
    normalisation: (mean, std), or None to leave pixels as they are.
    temperature: softens the labels, see `PoolSettings`; None leaves them as they are.
    """

    renderer: Renderer
    decoder: TorchDecoder
    classes: npt.NDArray[np.int64]
    columns: int
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None
    label_kind: str
    temperature: Temperature | None
    device: torch.device
    pin_memory: bool
    buffers: BufferPool = field(default_factory=BufferPool)

    def pieces(self, prepared: Iterator[Prepared]) -> Pieces:
        """Return label batches ready to be cut."""
        return Pieces(map(self._piece, prepared))

    def _piece(self, item: Prepared) -> Piece:
        views, rows = item.views, item.rows
        pixels = item.pixels if item.pixels is not None else self.renderer.pixels(item.buffer, rows)
        targets = self.classes[views.images]
        partners = targets if views.mix is None else targets[views.mix.partner]
        return Piece(
            pixels=self._moved(pixels[:rows]),
            parts=tuple(self._moved(to_tensor(part)) for part in item.parts),
            targets=torch.from_numpy(targets[:rows]),
            partner_targets=torch.from_numpy(partners[:rows]),
            keys=torch.from_numpy(_row_keys(item)),
            strength=1.0 if views.mix is None else views.mix.strength,
        )

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor on the training device; the caller may reuse its memory at once."""
        if self.device.type == "cpu":
            return tensor
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def assemble(self, pieces: Pieces, rows: int | None, epoch: int) -> PoolBatch:
        """Return the next batch of `rows` rows, or of the next label batch as it is."""
        if rows == 0:
            return self._no_rows()
        if rows is None:
            rows = pieces.ahead()
        images = self._empty_images(rows)
        labels, targets, partner_targets, strengths, keys = [], [], [], [], []
        filled = 0
        while filled < rows:
            piece, part = pieces.take(rows - filled)
            taken = part.stop - part.start
            self._finish(piece.pixels[part], images[filled : filled + taken])
            labels.append(self.decoder.finish(tuple(array[part] for array in piece.parts)))
            targets.append(piece.targets[part])
            partner_targets.append(piece.partner_targets[part])
            strengths.append(torch.full((taken,), piece.strength))
            keys.append(piece.keys[part])
            filled += taken
        return PoolBatch(
            images=images,
            labels=self._softened(_joined(labels), epoch),
            targets=_joined(targets).to(self.device),
            partner_targets=_joined(partner_targets).to(self.device),
            mix_strength=_joined(strengths).to(self.device),
            keys=_joined(keys).to(self.device),
        )

    def _no_rows(self) -> PoolBatch:
        """Return a batch of no rows, without asking for a label batch: there may never be one."""
        numbers = torch.empty(0, dtype=torch.int64, device=self.device)
        return PoolBatch(
            images=self._empty_images(1)[:0],
            labels=torch.empty((0, self.columns), device=self.device),
            targets=numbers,
            partner_targets=numbers,
            mix_strength=torch.empty(0, device=self.device),
            keys=numbers.reshape(0, 3),
        )

    def _empty_images(self, rows: int) -> torch.Tensor:
        augmentation = self.renderer.augmentation
        height, width = augmentation.output_height, augmentation.output_width
        dtype = self.renderer.buffers.dtype if self.normalisation is None else torch.float32
        if self.device.type == "cpu" and not self.pin_memory:
            return self.buffers.images(rows, height, width, dtype)
        pinned = self.pin_memory and self.device.type == "cpu"
        flat = torch.empty((rows, height, width, 3), dtype=dtype, device=self.device, pin_memory=pinned)
        return flat.permute(0, 3, 1, 2)

    def _finish(self, pixels: torch.Tensor, images: torch.Tensor) -> None:
        """Write pixels into the rows of a batch, normalised if asked for."""
        if self.normalisation is not None:
            normalise(pixels, *self.normalisation, out=images)
        elif pixels.dtype == images.dtype:
            images.copy_(pixels)
        else:
            raise InvalidBatchError(
                "MixUp's pixels are not whole numbers, and the pool does not say that it has any",
                expected=images.dtype,
                got=pixels.dtype,
                hint="ask for normalised images",
            )

    def _softened(self, labels: torch.Tensor, epoch: int) -> torch.Tensor:
        if self.temperature is None:
            return labels
        temperature = self.temperature(epoch) if callable(self.temperature) else self.temperature
        return softened(labels, self.label_kind, temperature)


def _row_keys(item: Prepared) -> npt.NDArray[np.int64]:
    keys = np.empty((item.rows, 3), np.int64)
    keys[:, 0], keys[:, 1] = item.views.key
    keys[:, 2] = item.slots
    return keys


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
