"""`sre2l_loader`: our pools for training scripts written for SRe2L's or LPLD's label folders.

Those scripts take from their loader, once per label batch,

    ((images, target, flip, coords, index), mix_index, mix_lam, mix_bbox, soft_label)

which an edited copy of PyTorch put together, and mix the images themselves. Here an unedited one does.
In such a script, replace the dataset, sampler and DataLoader by

    train_loader = sre2l_loader("pool", "images", num_workers=4)

and leave out the lines that draw epochs or batches: the loader's policy does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import ViewBatch
from lpld_labels.loader.batch import to_tensor
from lpld_labels.loader.buffers import BufferPool
from lpld_labels.loader.dataset import LabelBatches, Prepared, Renderer
from lpld_labels.loader.decoders import TorchDecoder, decoder_for
from lpld_labels.loader.opening import (
    Location,
    find_normalisation,
    make_schedule,
    open_reader,
    open_renderer,
)
from lpld_labels.loader.settings import ImageSettings, takes_options
from lpld_labels.loader.share import Step
from lpld_labels.loader.steps import TrainingSteps
from lpld_labels.loader.streaming import LabelStream
from lpld_labels.loader.streaming_loader import StreamingLoader
from lpld_labels.pool.reader import PoolReader
from lpld_labels.replay import normalise

Sre2lBatch = tuple[
    tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    torch.Tensor | None,
    float | None,
    list[int] | None,
    torch.Tensor,
]
"""Five tensors of B rows and the mix.

images: float32 [B, 3, H, W], cropped, resized, flipped and normalised, but not mixed.
target: int64 [B]. flip: bool [B]. index: int64 [B], row of the image table.
coords: float32 [B, 4], the crop's top, left, height and width as fractions of the image's sides.
mix_index: int64 [B], slot of the partner. mix_lam: weight of the view itself.
mix_bbox: CutMix's [top, left, bottom, right] in pixels. All three None where nothing was mixed,
    mix_bbox also for MixUp.
soft_label: float32 [B, C].
"""


class Sre2lDataset(TrainingSteps):
    """The loader's dataset, with what training scripts call on it."""

    @property
    def batch_num_per_epoch(self) -> int:
        return self.schedule.sampling.batches_per_epoch


class Sre2lLoader(StreamingLoader):
    """Yields `Sre2lBatch` tuples. Made by `sre2l_loader`."""

    dataset: Sre2lDataset


@dataclass(frozen=True, kw_only=True, eq=False)
class Sre2lCutter:
    """Makes the tuples. normalisation: (mean, std)."""

    renderer: Renderer
    decoder: TorchDecoder
    images: ImageTable
    normalisation: tuple[tuple[float, ...], tuple[float, ...]]
    buffers: BufferPool = field(default_factory=BufferPool)

    def __call__(
        self, prepared: Iterator[Prepared], device: torch.device | None
    ) -> Callable[[Step], Sre2lBatch]:
        del device  # scripts move the tensors themselves
        return lambda step: self._batch(next(prepared))

    def _batch(self, item: Prepared) -> Sre2lBatch:
        views = item.views
        pixels = self.renderer.pixels(item.buffer, views.rows)
        images = self.buffers.images(views.rows, pixels.shape[2], pixels.shape[3])
        normalise(pixels, *self.normalisation, out=images)
        seen = (
            images,
            torch.from_numpy(self.images.classes[views.images].astype(np.int64)),
            torch.from_numpy(views.flips.copy()),
            torch.from_numpy(_fractions(views, self.images)),
            torch.from_numpy(views.images.astype(np.int64)),
        )
        soft_label = self.decoder.finish(tuple(to_tensor(part) for part in item.parts))
        mix = views.mix
        if mix is None:
            return seen, None, None, None, soft_label
        partner = torch.from_numpy(mix.partner.astype(np.int64))
        return seen, partner, mix.strength, None if mix.box is None else list(mix.box), soft_label


def _fractions(views: ViewBatch, images: ImageTable) -> npt.NDArray[np.float32]:
    heights, widths = images.heights[views.images], images.widths[views.images]
    return (views.crops / np.stack([heights, widths, heights, widths], axis=1)).astype(np.float32)


@takes_options(ImageSettings)
def sre2l_loader(settings: ImageSettings, pool: PoolReader | Location, images_dir: Location) -> Sre2lLoader:
    """Open a pool for a training script of SRe2L or LPLD; yields one `Sre2lBatch` per label batch.

    Processes take turns at label batches. Keywords: see `ImageSettings` and `LabelSettings`.
    """
    reader = open_reader(pool)
    normalisation = find_normalisation(reader, settings.mean, settings.std)
    schedule = make_schedule(reader, settings)
    renderer = open_renderer(reader, images_dir, settings, mixed=False)
    decoder = decoder_for(reader.codec, reader.classes)
    stream = LabelStream(LabelBatches(reader, decoder, renderer), schedule, settings)
    cutter = Sre2lCutter(
        renderer=renderer, decoder=decoder, images=reader.images, normalisation=normalisation
    )
    return Sre2lLoader(Sre2lDataset(stream, schedule, cutter, settings), pool=reader)
