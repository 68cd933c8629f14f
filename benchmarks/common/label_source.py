"""Label batches of any class count and size, made of real ImageNet-1K logits.

They come with the repository as a label pool (benchmarks/data); any other pool of logits will do.
1,000 classes: the logits as they are. Fewer: the first columns. More: the same rows seen through a linear
head of another size; a ResNet-18's logits are a linear map of 512 features whatever the class count, so
the rows' 512 strongest directions are mapped to `classes` outputs of the same total variance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.common.harness import PROJECT
from lpld_labels import Augmentation, BatchKey, Box, ImageTable, LabelBatch, Mix, PoolReader
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import CutOut

REAL_LABELS = PROJECT / "benchmarks" / "data" / "in1k_logits"
"""What benchmarks take for labels unless another pool is named."""
FEATURES = 512
NOISE = 0.05
"""Standard deviation of what is added to logits that are used again, so that no two rows are equal."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelSource:
    """Real rows to make batches of.

    logits: float16 [N, classes]. crops: float32 [N, 4], shares of the image's side. flips: bool [N].
    strengths: float [M]; boxes: int [M, 4] of 224 px images; a batch takes one of the M.
    """

    logits: npt.NDArray[np.float16]
    crops: npt.NDArray[np.float32]
    flips: npt.NDArray[np.bool_]
    strengths: npt.NDArray[np.float64]
    boxes: npt.NDArray[np.int64]

    @staticmethod
    def load(labels: Path = REAL_LABELS, *, classes: int = 1000, rows: int | None = None) -> LabelSource:
        """Read a CutMix pool of logits and bring them to a class count. rows: how many at most."""
        batches = list(real_batches(labels))
        mixes = [batch.mix for batch in batches if batch.mix is not None and batch.mix.box is not None]
        with PoolReader(labels) as pool:
            side = pool.header.augmentation.output_height
        return LabelSource(
            logits=_with_classes(np.concatenate([batch.labels for batch in batches])[:rows], classes),
            crops=(np.concatenate([batch.crops for batch in batches])[:rows] / side).astype(np.float32),
            flips=np.concatenate([batch.flips for batch in batches])[:rows],
            strengths=np.array([mix.strength for mix in mixes], np.float64),
            boxes=np.array([mix.box for mix in mixes], np.int64),
        )

    @property
    def rows(self) -> int:
        return len(self.logits)

    def batches(
        self,
        count: int,
        *,
        rows: int,
        augmentation: Augmentation,
        images: int,
        per_epoch: int,
        first: int = 0,
    ) -> Iterator[LabelBatch]:
        """Yield `count` batches of `rows` rows, beginning with row `first` of the source.

        Once the source is used up its rows come again in another order and with noise.
        images: of the image table. per_epoch: batches that share an epoch number.
        """
        order = np.arange(first, self.rows)
        used, again = 0, 0
        for number in range(count):
            if used + rows > len(order):
                again += 1
                used = 0
                order = keyed_generator(again, 1).permutation(self.rows)
            chosen = np.resize(order[used : used + rows], rows)
            used += rows
            random = keyed_generator(number, 2)
            logits = self.logits[chosen]
            if again:
                noise = random.standard_normal(logits.shape, dtype=np.float32) * np.float32(NOISE)
                logits = (logits + noise).astype(np.float16)
            side = augmentation.output_height
            yield LabelBatch(
                key=BatchKey(number // per_epoch, number % per_epoch),
                images=random.integers(0, images, rows).astype(np.int32),
                crops=_crops(self.crops[chosen], side),
                flips=self.flips[chosen] & (augmentation.flip_probability is not None),
                mix=self._mix(random, rows, side) if augmentation.mix == "cutmix" else None,
                cutout=_cutout(random, rows, side) if augmentation.cutout_fraction is not None else None,
                labels=logits,
            )

    def _mix(self, random: np.random.Generator, rows: int, side: int) -> Mix:
        pick = int(random.integers(0, len(self.strengths)))
        box = (self.boxes[pick] * side // 224).tolist()
        return Mix(
            partner=random.permutation(rows).astype(np.int32),
            strength=float(self.strengths[pick]),
            box=Box(*box),
        )


def real_batches(labels: Path = REAL_LABELS) -> Iterator[LabelBatch]:
    """Yield the batches of a pool as they are, labels as float16."""
    with PoolReader(labels) as pool:
        yield from pool.iterate(dtype=np.float16)


def repeated_batches(labels: Path, count: int, *, per_epoch: int) -> Iterator[LabelBatch]:
    """Yield `count` batches: the pool's first, then again and again with noise, so that no two are equal."""
    known = list(real_batches(labels))
    images = 1 + max(int(batch.images.max()) for batch in known)
    for number in range(count):
        again, place = divmod(number, len(known))
        batch = known[place]
        logits = batch.labels
        if again:
            random = keyed_generator(number, 3)
            noise = random.standard_normal(logits.shape, dtype=np.float32) * np.float32(NOISE)
            logits = (logits + noise).astype(np.float16)
        yield replace(
            batch,
            key=BatchKey(number // per_epoch, number % per_epoch),
            images=(batch.images + again) % images,
            labels=logits,
        )


def image_table(count: int, *, classes: int, side: int) -> ImageTable:
    """Return a table of square images, spread over the classes; digests as incompressible as real ones."""
    digests = keyed_generator(0, count).bytes(16 * count)
    sides = np.full(count, side, np.int32)
    labels = np.sort(np.arange(count, dtype=np.int32) % classes)
    return ImageTable(
        paths=[f"{label:05d}/{label:05d}_{number:07d}.jpg" for number, label in enumerate(labels.tolist())],
        classes=labels,
        widths=sides,
        heights=sides,
        digests=[digests[start : start + 16] for start in range(0, 16 * count, 16)],
    )


def _with_classes(logits: npt.NDArray[np.float16], classes: int) -> npt.NDArray[np.float16]:
    known = logits.shape[1]
    if classes <= known:
        return np.ascontiguousarray(logits[:, :classes])
    values = logits.astype(np.float32)
    mean = values.mean(axis=0)
    _, vectors = np.linalg.eigh(np.cov(values, rowvar=False))
    features = (values - mean) @ vectors[:, : -FEATURES - 1 : -1]
    # Entries of variance 1 / known keep the variance of a logit what it was.
    random = keyed_generator(0, classes)
    head = random.standard_normal((features.shape[1], classes), dtype=np.float32) / np.sqrt(known)
    bias = random.choice(mean, classes)
    return np.asarray(features @ head + bias, np.float16)


def _crops(shares: npt.NDArray[np.float32], side: int) -> npt.NDArray[np.int32]:
    crops = np.rint(shares * side).astype(np.int32)
    crops[:, 2:] = np.maximum(crops[:, 2:], 1)
    return crops


def _cutout(random: np.random.Generator, rows: int, side: int) -> CutOut:
    half = side // 2
    corner = random.integers(0, side - half + 1, (rows, 2)).astype(np.int32)
    return CutOut(
        boxes=np.concatenate([corner, corner + half], axis=1),
        fill=random.integers(0, 256, (rows, 3)).astype(np.uint8),
    )
