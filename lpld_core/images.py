"""Real images and their views. Threads prepare the views, because decoding and resizing release the GIL."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lpld_core.settings import CROP_RATIO, FLIP_PROBABILITY
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.format.drawing import draw_crops
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.render import ImageStore, apply_views, normalise
from lpld_labels.render.apply import centre_view, resized_crop
from lpld_labels.render.decode import decode_image
from lpld_labels.render.images import THREADS, class_names, file_status, list_images, map_ahead, read_file

Pixels = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]
Size = tuple[int, int]
"""Height and width."""
_BATCHES_AHEAD = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class RealFolder:
    """The images of a folder, in torchvision's order. paths: relative POSIX paths. labels: int64 [N]."""

    root: Path
    paths: tuple[str, ...]
    labels: Rows
    class_names: tuple[str, ...]

    @staticmethod
    def open(root: str | os.PathLike[str]) -> RealFolder:
        """List an image folder; refuse it if it is missing, is empty, or has a class without images."""
        paths, labels = list_images(root)
        return RealFolder(
            root=Path(root),
            paths=tuple(paths),
            labels=np.asarray(labels, np.int64),
            class_names=tuple(class_names(root)),
        )

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def counts(self) -> Rows:
        return np.bincount(self.labels, minlength=self.classes)

    def rows_of(self, label: int) -> Rows:
        return np.flatnonzero(self.labels == label)

    def sample(self, label: int, most: int, *, seed: int, stream: Stream) -> Rows:
        """Choose up to `most` random images of a class; return their rows in folder order."""
        rows = self.rows_of(label)
        draws = keyed_generator(seed, stream, label, 0, 0).random(len(rows))
        return rows[np.sort(np.argsort(draws, kind="stable")[:most])]

    def listing_digest(self, rows: Rows | None = None, *, dates: bool = False) -> str:
        """Return a hex SHA-256 of image paths and sizes. rows: None for all. dates: add the file dates."""
        state = hashlib.sha256()
        for path in self.paths if rows is None else [self.paths[row] for row in rows.tolist()]:
            found = file_status(self.root / path)
            date = f":{found.st_mtime_ns}" if dates else ""
            state.update(f"{path}:{found.st_size}{date}\n".encode())
        return state.hexdigest()

    def identity_digest(self) -> str:
        """Return a hex SHA-256 over all paths, all sizes, and the bytes of the first image of each class.

        Copies of a folder have the same digest. Bytes are needed: uncompressed images often have equal sizes.
        """
        state = hashlib.sha256(self.listing_digest().encode())
        for row in np.unique(self.labels, return_index=True)[1].tolist():
            state.update(hashlib.sha256(read_file(self.root / self.paths[row])).digest())
        return state.hexdigest()

    def decode(self, row: int) -> Pixels:
        path = self.root / self.paths[row]
        return decode_image(read_file(path), where=path)


def prepared(views: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return uint8 views [B, H, W, 3] as a teacher's input: float32 [B, 3, H, W], normalised."""
    return normalise(views.to(torch.float32).permute(0, 3, 1, 2), mean, std)


def labelled_batches(
    teacher: LoadedTeacher,
    folder: RealFolder,
    rows: Rows,
    show: Callable[[int, Pixels], Tensor] | None = None,
    *,
    batch_size: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, in the order of `rows`, normalised views float32 [B, 3, H, W] and their labels int64 [B].

    show: makes the view uint8 [H, W, 3] of (row, image); called in threads. None: use the centre view.
    """

    def view(row: int) -> Tensor:
        image = folder.decode(row)
        return centre_view(image, teacher.input_size) if show is None else show(row, image)

    views = map_ahead(view, rows.tolist(), workers=THREADS, ahead=_BATCHES_AHEAD * batch_size)
    for start in range(0, len(rows), batch_size):
        chunk = rows[start : start + batch_size]
        batch = torch.stack(list(islice(views, len(chunk))))
        yield prepared(batch, teacher.mean, teacher.std), torch.from_numpy(folder.labels[chunk])


def shuffled_rows(folder: RealFolder, seed: int, number: int = 0) -> Rows:
    """Return all rows in random order. The order depends only on the seed and the pass `number`."""
    draws = keyed_generator(seed, Stream.SQUEEZE_ORDER, number, 0, 0).random(len(folder))
    return np.argsort(draws, kind="stable")


def evenly(count: int, most: int) -> list[int]:
    """Return up to `most` evenly spaced integers from 0 to ``count - 1``."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()))


def random_view(image: Pixels, size: Size, draws: np.random.Generator) -> Tensor:
    """Return a random crop of an image uint8 [H, W, 3], resized to uint8 [h, w, 3] and flipped at random."""
    view = resized_crop(image, random_crops(draws, image.shape[:2], size, least=0.08)[0], size)
    return view.flip(1) if draws.random() < FLIP_PROBABILITY else view


def random_crops(
    draws: np.random.Generator,
    image: Sequence[int],
    output: Size,
    *,
    least: float,
    ratio: tuple[float, float] = CROP_RATIO,
    count: int = 1,
) -> list[list[int]]:
    """Draw crops (top, left, height, width). least: minimum share of area. ratio: range of width / height."""
    augmentation = Augmentation(
        output_height=output[0],
        output_width=output[1],
        resize="torch",
        crop_scale=(least, 1.0),
        crop_ratio=ratio,
    )
    heights, widths = (np.full(count, side, np.int64) for side in image)
    crops: list[list[int]] = draw_crops(draws, heights, widths, augmentation).tolist()
    return crops


V = TypeVar("V", bound=ViewBatch)


def rendered(
    keys: Iterable[BatchKey],
    views_of: Callable[[BatchKey], V],
    store: ImageStore,
    augmentation: Augmentation,
    *,
    workers: int = 1,
) -> Generator[tuple[V, torch.Tensor], None, None]:
    """Yield (views, pixels) for every key, in order. pixels: [B, 3, H, W], values 0..255.

    views_of: draws or reads views; one thread at a time calls it. Pixels are float32 for MixUp, else uint8.
    """
    dtype = torch.float32 if augmentation.mix == "mixup" else torch.uint8
    one_at_a_time = threading.Lock()

    def render(key: BatchKey) -> tuple[V, torch.Tensor]:
        with one_at_a_time:
            views = views_of(key)
        return views, apply_views(views, store, augmentation, dtype=dtype, inside=True)

    return map_ahead(render, keys, workers=workers, ahead=workers + 1)
