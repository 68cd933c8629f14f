"""The baseline of the loader's benchmark: loading label batches as relabelling programs do today.

One pickle per label batch, read with torch.load; per image, the JPEG is opened and decoded anew, cropped,
resized and flipped by PIL, turned into a tensor and normalised; the batch is stacked and mixed. Written
from the published programs' description of a batch, [crops, flips, mix index, lambda, box, labels].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as transforms

from lpld_labels import BatchKey, PoolReader

Config = list[Any]


def write_reference_folder(pool: PoolReader, folder: Path) -> None:
    """Write every batch of a pool as one file, and the images each batch shows."""
    folder.mkdir(parents=True)
    sizes = torch.from_numpy(np.stack([pool.images.heights, pool.images.widths] * 2, axis=1))
    for batch in pool.iterate():
        if batch.mix is None or batch.mix.box is None:
            raise ValueError("the baseline is for CutMix pools")
        config: Config = [
            torch.from_numpy(batch.crops.copy()) / sizes[batch.images.tolist()],
            torch.from_numpy(batch.flips.copy()),
            torch.from_numpy(batch.mix.partner.copy()).long(),
            batch.mix.strength,
            list(batch.mix.box),
            torch.from_numpy(batch.labels.copy()),
        ]
        torch.save(config, folder / _file(batch.key))


def _file(key: BatchKey) -> str:
    return f"epoch_{key.epoch}_batch_{key.batch}.tar"


class ReferenceDataset(Dataset[Any]):
    """Images of label batches, fetched a label batch at a time."""

    def __init__(
        self, pool: PoolReader, images: Path, folder: Path, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        self.paths = [str(images / path) for path in pool.images.paths]
        self.classes = pool.images.classes.tolist()
        self.shown = {key: pool.read_views(key).images.tolist() for key in pool.keys}
        self.folder = folder
        self.size = [pool.header.augmentation.output_height, pool.header.augmentation.output_width]
        self.mean, self.std = list(mean), list(std)

    def __getitem__(self, key: BatchKey) -> tuple[Any, ...]:
        config: Config = torch.load(self.folder / _file(key), weights_only=False)
        images = [
            self._image(self.paths[index], coords, flip)
            for index, coords, flip in zip(self.shown[key], config[0], config[1], strict=True)
        ]
        targets = torch.tensor([self.classes[index] for index in self.shown[key]])
        return (torch.stack(images), targets, *config[2:])

    def _image(self, path: str, coords: torch.Tensor, flip: torch.Tensor) -> torch.Tensor:
        with Path(path).open("rb") as stream:
            image = Image.open(stream).convert("RGB")
        width, height = image.size
        top, left, rows, columns = (coords * torch.tensor([height, width, height, width])).tolist()
        crop = (round(top), round(left), round(rows), round(columns))
        image = transforms.resized_crop(image, *crop, self.size, InterpolationMode.BILINEAR)
        if flip:
            image = transforms.hflip(image)
        pixels: torch.Tensor = transforms.normalize(transforms.to_tensor(image), self.mean, self.std)
        return pixels


def reference_loader(
    dataset: ReferenceDataset, keys: Sequence[BatchKey], *, num_workers: int
) -> DataLoader[Any]:
    """Return the loader that training scripts iterate; workers stay between epochs."""
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=list(keys),
        collate_fn=_as_it_is,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


def _as_it_is(item: Any) -> Any:
    return item


def reference_batches(loader: DataLoader[Any]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield images and labels as the training step gets them: mixed, labels as float32."""
    for images, _, mix_index, _, (top, left, bottom, right), labels in loader:
        images[:, :, top:bottom, left:right] = images[mix_index, :, top:bottom, left:right]
        yield images, labels.float()
