"""The DataLoader behind the loaders for scripts, and what all of them do to open a pool."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch.utils.data import DataLoader

from lpld_labels.errors import InvalidArgumentError, LabelPoolError, WorkerDiedError
from lpld_labels.loader.authors.programme import Epochs, Places, Process, Programme
from lpld_labels.loader.authors.script_batches import Replayed, ScriptBatches
from lpld_labels.loader.buffers import BufferPool
from lpld_labels.loader.dataset import Renderer
from lpld_labels.loader.decoders import TorchDecoder, decoder_for
from lpld_labels.loader.opening import Location, find_normalisation, open_reader, open_renderer
from lpld_labels.loader.orphans import watch_parent
from lpld_labels.loader.settings import ImageSettings
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.image_source import find_images

if TYPE_CHECKING:
    from typing_extensions import Unpack

NOT_MIXED = (None, "None")
"""Scripts' configuration files may say None as text."""


class ScriptOptions(TypedDict, total=False):
    """What every loader for scripts takes; all mean the same as for `pool_loader`."""

    mean: Sequence[float] | None
    std: Sequence[float] | None
    rank: int | None
    world_size: int | None
    num_workers: int
    prefetch_factor: int
    timeout: float
    multiprocessing_context: Any
    cache_directory: str | os.PathLike[str] | None
    memory_bytes: int


class ScriptLoader(DataLoader[Any]):
    """Plays what a script asks for, one pass at a time, in the tuples the script takes apart.

    `dataset` and `sampler` have the methods the scripts call on theirs. A pass has `len(loader)`
    batches. Images are float32 [B, 3, H, W], cropped, resized, flipped and normalised with the very
    arithmetic of torchvision's ToTensor and Normalize, contiguous, and not mixed: scripts do that.
    """

    dataset: ScriptBatches
    sampler: Programme

    def __init__(
        self,
        pool: PoolReader | Location,
        images_dir: Location | None,
        epochs: Epochs,
        *,
        numbered: Places,
        batches_per_epoch: int,
        together: int = 1,
        short_anywhere: bool = False,
        decoder: TorchDecoder | None = None,
        **options: Unpack[ScriptOptions],
    ) -> None:
        """Open a pool. decoder: the codec's own unless given. See `Programme` for the others."""
        reader = open_reader(pool)
        settings = ImageSettings(**options)
        workers, ahead = settings.num_workers, settings.prefetch_factor
        mean, std = find_normalisation(reader, options.get("mean"), options.get("std"))
        self._mean_std = list(zip(mean, std, strict=True))
        self._decoder = decoder_for(reader.codec, reader.classes) if decoder is None else decoder
        self._renderer: Renderer = open_renderer(
            reader,
            find_images(reader, images_dir),
            settings,
            mixed=False,
        )
        self._buffers = BufferPool()
        self._together = together
        self.classes = reader.classes
        """Number of label columns C."""
        self._programme = Programme(
            epochs,
            reader.index,
            batch_size=reader.header.batch_size,
            numbered=numbered,
            slots=settings.label_batches_under_way,
            process=Process(rank=options.get("rank"), world_size=options.get("world_size")),
            together=together,
            short_anywhere=short_anywhere,
        )
        super().__init__(
            ScriptBatches(
                reader,
                self._decoder,
                self._renderer,
                self._programme,
                batches_per_epoch=batches_per_epoch,
                numbered_batches=len(numbered),
            ),
            batch_size=None,
            sampler=self._programme,
            collate_fn=_as_it_is,
            num_workers=workers,
            prefetch_factor=ahead if workers else None,
            persistent_workers=workers > 0,
            worker_init_fn=watch_parent,
            timeout=options.get("timeout", 0),
            multiprocessing_context=options.get("multiprocessing_context"),
            # DataLoader draws a seed for its workers, but not in every pass; see __iter__.
            generator=torch.Generator(),
        )

    @abstractmethod
    def _batch(self, replayed: list[tuple[Replayed, torch.Tensor]]) -> Any:
        """Return what the script takes apart, from the label batches of one step and their images."""

    def __len__(self) -> int:
        """Number of batches of the pass that is under way, or of the next one."""
        return math.ceil(len(self._programme) / self._together)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator does for an iterator
        self._programme.begin()
        # The scripts' own loaders take one number from torch's generator in every pass. So does this one:
        # a script that draws batches from that generator then draws the same ones.
        torch.empty((), dtype=torch.int64).random_()
        return self._play()

    def _play(self) -> Iterator[Any]:
        arriving = ((item, self._images(item)) for item in self._arriving())
        while step := list(islice(arriving, self._together)):
            yield self._batch(step)

    def _arriving(self) -> Iterator[Replayed]:
        try:
            for item in super().__iter__():
                if isinstance(item, LabelPoolError):
                    raise item
                yield item
        except (RuntimeError, EOFError, OSError) as error:
            # Torch has no class of its own for workers that were killed or do not answer. One that dies
            # while it hands over memory breaks the connection instead.
            broken = self.num_workers > 0 and not isinstance(error, RuntimeError)
            if isinstance(error, LabelPoolError) or not (broken or str(error).startswith("DataLoader")):
                raise
            self._iterator = None
            raise WorkerDiedError(
                f"a loading process is gone: {str(error).strip()}",
                hint="it may have run out of memory; try fewer workers, or num_workers=0",
            ) from error

    def _images(self, item: Replayed) -> torch.Tensor:
        """Return the pixels of a slot as torchvision's ToTensor and Normalize would, bit by bit."""
        rows = len(item.target)
        pixels = self._renderer.pixels(item.slot, rows)
        height, width = pixels.shape[2:]
        lent = self._buffers.images(rows, height, width)
        images = lent.permute(0, 2, 3, 1).view(rows, 3, height, width)
        # One plane at a time stays in a core's cache, and torch's threads stay out of it.
        for source, target in zip(pixels, images, strict=True):
            for channel, (mean, std) in enumerate(self._mean_std):
                target[channel].copy_(source[channel]).div_(255).sub_(mean).div_(std)
        return images

    def _labels(self, item: Replayed) -> torch.Tensor:
        """Return labels float32 [B, C]."""
        return self._decoder.finish(item.parts)


def _as_it_is(item: Any) -> Any:
    """Keep DataLoader from turning tensors inside an item into others."""
    return item


def check_arguments(pool: PoolReader, *, batch_size: int, mix_type: str | None, kind: str = "logits") -> None:
    """Refuse a script's arguments that do not fit the pool: it would train on other data, unseen."""
    stored = pool.header
    if batch_size != stored.batch_size:
        raise InvalidArgumentError(
            "the script's batch size is not the pool's",
            where=pool.location,
            expected=stored.batch_size,
            got=batch_size,
            hint="views are mixed within their batch; to save memory raise --gradient-accumulation-steps",
        )
    wanted = "none" if mix_type in NOT_MIXED else mix_type
    if wanted != stored.augmentation.mix:
        raise InvalidArgumentError(
            "the script mixes images in another way than those were that the labels are for",
            where=pool.location,
            expected=f"--mix-type {stored.augmentation.mix}",
            got=wanted,
        )
    if stored.label_kind != kind:
        raise InvalidArgumentError(
            f"the script expects {kind}",
            where=pool.location,
            expected=f"a pool of {kind}",
            got=stored.label_kind,
        )
