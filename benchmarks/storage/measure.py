"""Bytes of label pools, measured on a few batches written for real and scaled by the exact number of rows."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.common.label_source import LabelSource, image_table
from benchmarks.common.pickle_layout import save_pickle_batch
from benchmarks.storage.spec import Dataset
from lpld_labels import LabelBatch, PoolHeader, PoolReader, PoolWriter
from lpld_labels.codecs import Codec, codec_named
from lpld_labels.codecs.fidelity import FidelityMeter
from lpld_labels.codecs.klt_fit import KltFitter
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.settings import DEFAULT_FIDELITY, DEFAULT_TEMPERATURE

TUNE_ROWS = 256
"""Rows that klt's step is chosen by. These and those it is fitted to are not among those measured."""
OURS = ("f16", "int8", "klt")
FEW_IMAGES = 10
LEAST_KEPT = {"f16": 1.0, "int8": 0.999, "klt": DEFAULT_FIDELITY - 0.01}
"""Share of the labels' information that must come back; klt meets its own on other rows of the same kind."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How a pool grows: fixed bytes (image table excluded) and bytes per row."""

    fixed: float
    per_row: float


class Measurement:
    """Sizes of one data set's labels in the original layout and in ours."""

    def __init__(self, labels: Path, dataset: Dataset, folder: Path, *, batches: int) -> None:
        """batches: to write per layout, at most; fewer where the real rows do not suffice."""
        self.dataset = dataset
        self._folder = folder
        # A wide head has no more than 512 directions to find, and finding them is slow.
        self._fit_rows = 2048 if dataset.classes <= 1000 else 1024
        wanted = self._fit_rows + TUNE_ROWS + batches * dataset.batch_size
        self._source = LabelSource.load(labels, classes=dataset.classes, rows=wanted)
        available = (self._source.rows - self._fit_rows - TUNE_ROWS) // dataset.batch_size
        self._batches = max(2, min(batches, available) // 2 * 2)
        self.kept: dict[str, float] = {}
        self._growths: dict[tuple[str, int], Growth] = {}
        self._image_bytes: dict[int, int] = {}
        self._files: dict[int, float] = {}

    def original(self, ipc: int, ratio: int) -> float:
        """Return the bytes of one file per batch."""
        dataset = self.dataset
        full = self._file_bytes(dataset.batch_size) * dataset.full_batches(ipc, ratio)
        if ratio > 1 or dataset.rest(ipc) == 0:
            return full
        return full + self._file_bytes(dataset.rest(ipc)) * dataset.epochs

    def ours(self, codec: str, ipc: int, ratio: int) -> float:
        """Return the bytes of a pool of ours."""
        rows = self.dataset.label_rows(ipc, ratio)
        growth = self._growth(codec, rows)
        return growth.fixed + self._images(ipc) + growth.per_row * rows

    def codec(self, name: str, rows: int) -> Codec:
        """Return a codec for a pool of so many rows."""
        if name != "klt":
            return codec_named(name)
        return self._fitter.for_rows(rows).for_fidelity(DEFAULT_FIDELITY, temperature=DEFAULT_TEMPERATURE)

    def batches(
        self, count: int, *, rows: int | None = None, images: int | None = None
    ) -> Iterator[LabelBatch]:
        """Yield batches of rows that no codec was fitted to; beyond the real ones, with noise.

        images: of the pool, ten per class if not given.
        """
        images = images or self.dataset.images(FEW_IMAGES)
        return self._source.batches(
            count,
            rows=rows or self.dataset.batch_size,
            augmentation=self.dataset.augmentation,
            images=images,
            per_epoch=math.ceil(images / self.dataset.batch_size),
            first=self._fit_rows + TUNE_ROWS,
        )

    def epochs_of(self, ipc: int, epochs: int) -> Iterator[LabelBatch]:
        """Yield every batch of whole epochs, the incomplete last one of each included."""
        full, rest = divmod(self.dataset.images(ipc), self.dataset.batch_size)
        images = self.dataset.images(ipc)
        batches = self.batches(epochs * (full + bool(rest)), images=images)
        for number, batch in enumerate(batches):
            yield cut_short(batch, rest) if rest and number % (full + 1) == full else batch

    def header(self) -> PoolHeader:
        """Return the header of this data set's pools."""
        return PoolHeader(
            classes=self.dataset.classes,
            batch_size=self.dataset.batch_size,
            augmentation=self.dataset.augmentation,
        )

    @cached_property
    def _fitter(self) -> KltFitter:
        fit, tune, _ = np.split(self._source.logits, [self._fit_rows, self._fit_rows + TUNE_ROWS])
        return KltFitter(
            fit=[fit],
            tune=[tune],
            rows=len(fit),
            batch_size=self.dataset.batch_size,
        )

    def _file_bytes(self, rows: int) -> float:
        """Return the mean bytes of a batch file of the original layout."""
        if rows in self._files:
            return self._files[rows]
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            sizes = [
                save_pickle_batch(Path(name) / f"batch_{number}.tar", batch, side=self.dataset.side)
                for number, batch in enumerate(self.batches(2, rows=rows))
            ]
        self._files[rows] = float(np.mean(sizes))
        return self._files[rows]

    def _growth(self, name: str, rows: int) -> Growth:
        """Write half the batches and all of them, and tell fixed bytes from those that grow.

        The basis of klt grows with the pool it is for: it is fitted for the power of 100 below `rows`.
        """
        magnitude = 100 ** int(math.log10(rows) / 2) if name == "klt" else 0
        key = (name, magnitude)
        if key not in self._growths:
            codec = self.codec(name, magnitude)
            few, many = (self._written(codec, name, count) for count in (self._batches // 2, self._batches))
            per_batch = (many - few) / (self._batches - self._batches // 2)
            self._growths[key] = Growth(
                fixed=many - per_batch * self._batches, per_row=per_batch / self.dataset.batch_size
            )
        return self._growths[key]

    def _written(self, codec: Codec, name: str, count: int) -> int:
        """Return the bytes of a pool of `count` batches without its image table."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            path, images = Path(folder) / "pool", self.dataset.images(FEW_IMAGES)
            size = write_pool(path, self.header(), codec, self.batches(count), images)
            self._check(path, name, count)
            with PoolReader(path) as pool:
                return size - sum(entry.bytes for entry in pool.manifest.files_of("images"))

    def _check(self, path: Path, name: str, count: int) -> None:
        """Refuse to weigh labels that did not come back."""
        meter = FidelityMeter(temperatures=(DEFAULT_TEMPERATURE,))
        with PoolReader(path) as pool:
            for batch in self.batches(count):
                meter.add(batch.labels, pool.read_labels(batch.key, dtype=np.float32))
        kept = meter.result().kept[DEFAULT_TEMPERATURE]
        if kept < LEAST_KEPT[name]:
            raise RuntimeError(f"{name}: only {kept:.4f} of the labels' information came back")
        self.kept[name] = min(kept, self.kept.get(name, 1.0))

    def _images(self, ipc: int) -> int:
        """Return the bytes of the image table for so many images per class."""
        if ipc not in self._image_bytes:
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                path = Path(folder) / "pool"
                write_pool(path, self.header(), codec_named("f16"), (), self.dataset.images(ipc))
                with PoolReader(path) as pool:
                    (entry,) = pool.manifest.files_of("images")
                    self._image_bytes[ipc] = entry.bytes
        return self._image_bytes[ipc]


def cut_short(batch: LabelBatch, rows: int) -> LabelBatch:
    """Return the first rows of a batch, which mix with one another only."""
    mix = batch.mix
    return replace(
        batch,
        images=batch.images[:rows],
        crops=batch.crops[:rows],
        flips=batch.flips[:rows],
        mix=None if mix is None else replace(mix, partner=np.arange(rows, dtype=np.int32)[::-1].copy()),
        labels=batch.labels[:rows],
    )


def write_pool(
    path: Path, header: PoolHeader, codec: Codec, batches: Iterable[LabelBatch], images: int
) -> int:
    """Write a pool and return its bytes on disk."""
    table = image_table(images, classes=header.classes, side=header.augmentation.output_height)
    with PoolWriter(path, header=header, images=table, codec=codec) as writer:
        for batch in batches:
            writer.append(batch)
        manifest = writer.commit()
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    if size != pool_bytes(manifest):
        raise RuntimeError(f"{path}: {size} bytes on disk, {pool_bytes(manifest)} by its manifest")
    return size
