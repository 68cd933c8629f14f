"""`sre2l_loader`: our pools for training scripts written for SRe2L's or LPLD's label folders.

Those scripts take from their loader, once per label batch,

    ((images, target, flip, coords, index), mix_index, mix_lam, mix_bbox, soft_label)

which an edited copy of PyTorch put together, and mix the images themselves. Here an unedited one does.
In such a script, replace the dataset, sampler and DataLoader by

    train_loader = sre2l_loader("pool", "images", num_workers=4)

and leave out the lines that draw epochs or batches: the loader's policy does that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import ViewBatch
from lpld_labels.loader.batch import to_tensor
from lpld_labels.loader.buffers import BufferPool
from lpld_labels.loader.cursor import Cursor, Schedule
from lpld_labels.loader.dataset import LabelBatches, Prepared, Renderer
from lpld_labels.loader.decoders import TorchDecoder, decoder_for
from lpld_labels.loader.image_cache import MEMORY_BYTES
from lpld_labels.loader.opening import find_normalisation, make_schedule, open_reader, open_renderer
from lpld_labels.loader.share import Share
from lpld_labels.loader.streaming import StreamingLoader
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


class Sre2lDataset(LabelBatches):
    """The loader's dataset, with what training scripts call on it."""

    def __init__(
        self, pool: PoolReader, decoder: TorchDecoder, renderer: Renderer, batches_per_epoch: int
    ) -> None:
        super().__init__(pool, decoder, renderer)
        self.batch_num_per_epoch = batches_per_epoch
        self.cursor = Cursor()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays."""
        self.cursor.set_epoch(epoch)


class Sre2lLoader(StreamingLoader):
    """Yields `Sre2lBatch` tuples. Made by `sre2l_loader`."""

    dataset: Sre2lDataset

    def __init__(
        self,
        dataset: Sre2lDataset,
        schedule: Schedule,
        renderer: Renderer,
        decoder: TorchDecoder,
        *,
        pool: PoolReader,
        mean: Sequence[float],
        std: Sequence[float],
        **options: Any,
    ) -> None:
        self._renderer = renderer
        self._decoder = decoder
        self._images = pool.images
        self._normalisation = (mean, std)
        self._buffers = BufferPool()
        super().__init__(dataset, schedule, pool=pool, cursor=dataset.cursor, **options)

    def _steps(self, units: int) -> int:
        return units

    def _cut(self, prepared: Iterator[Prepared], share: Share) -> Iterator[tuple[Sre2lBatch, int]]:
        for item in prepared:
            yield self._batch(item), 1

    def _batch(self, item: Prepared) -> Sre2lBatch:
        views = item.views
        pixels = self._renderer.pixels(item.slot, views.rows)
        images = self._buffers.images(views.rows, pixels.shape[2], pixels.shape[3])
        normalise(pixels, *self._normalisation, out=images)
        seen = (
            images,
            torch.from_numpy(self._images.classes[views.images].astype(np.int64)),
            torch.from_numpy(views.flips.copy()),
            torch.from_numpy(_fractions(views, self._images)),
            torch.from_numpy(views.images.astype(np.int64)),
        )
        soft_label = self._decoder.finish(tuple(to_tensor(part) for part in item.parts))
        mix = views.mix
        if mix is None:
            return seen, None, None, None, soft_label
        partner = torch.from_numpy(mix.partner.astype(np.int64))
        return seen, partner, mix.strength, None if mix.box is None else list(mix.box), soft_label


def _fractions(views: ViewBatch, images: ImageTable) -> npt.NDArray[np.float32]:
    heights, widths = images.heights[views.images], images.widths[views.images]
    return (views.crops / np.stack([heights, widths, heights, widths], axis=1)).astype(np.float32)


def sre2l_loader(
    pool: PoolReader | str | os.PathLike[str],
    images_dir: str | os.PathLike[str],
    *,
    policy: str = "batches",
    seed: int = 0,
    batches_per_epoch: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    timeout: float = 0,
    multiprocessing_context: Any = None,
    cache_directory: str | os.PathLike[str] | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> Sre2lLoader:
    """Open a pool for a training script of SRe2L or LPLD; yields one `Sre2lBatch` per label batch.

    All parameters mean the same as for `pool_loader`. Processes get equal numbers of label batches.
    """
    reader = open_reader(pool)
    mean, std = find_normalisation(reader, mean, std)
    schedule = make_schedule(
        reader,
        policy=policy,
        seed=seed,
        batches_per_epoch=batches_per_epoch,
        rank=rank,
        world_size=world_size,
        whole_batches=True,
    )
    renderer = open_renderer(
        reader,
        images_dir,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        cache_directory=cache_directory,
        memory_bytes=memory_bytes,
        mixed=False,
    )
    decoder = decoder_for(reader.codec, reader.classes)
    return Sre2lLoader(
        Sre2lDataset(reader, decoder, renderer, schedule.sampling.batches_per_epoch),
        schedule,
        renderer,
        decoder,
        pool=reader,
        mean=mean,
        std=std,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        timeout=timeout,
        multiprocessing_context=multiprocessing_context,
    )
