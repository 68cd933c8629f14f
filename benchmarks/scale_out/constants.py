"""What handing out a task, sealing a shard and committing cost, measured apart from labelling."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.label_source import image_table
from benchmarks.scale_out.calculation import BATCHES_PER_TASK
from benchmarks.scale_out.engines import ray
from lpld_core.relabel.source import labelled
from lpld_core.train.settings import preset_named
from lpld_labels.codecs import codec_named
from lpld_labels.exec.job import Job, Steps
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.pool.writer import PoolWriter
from lpld_labels.render import draw_views

CLASSES, ROWS, IMAGES = 10450, 32, 3200


@dataclass(frozen=True)
class Idle:
    """A worker whose tasks are nothing."""

    def do(self, task: int, *, again: bool) -> Steps:
        """Do nothing at all."""
        del task, again
        yield 1


def start_idle(number: int) -> Idle:
    """Set it up."""
    del number
    return Idle()


def task_seconds(tasks: int) -> float:
    """Return the seconds that a task costs which is nothing, handed out to two workers of Ray.

    That is the driver's share, and Ray's way there and back.
    """
    moments: list[float] = []

    def note(done: int, total: int) -> None:
        del done, total
        moments.append(time.perf_counter())

    job = Job(start=start_idle, tasks=range(tasks), name=str, total=tasks, done=0, where="nowhere")
    with ray() as engine:
        engine.run(job, note)
    # The first half warms up.
    half = len(moments) // 2
    return (moments[-1] - moments[half]) / (len(moments) - 1 - half)


def store(work: Path, shards: int) -> dict[str, Any]:
    """Seal full shards of ImageNet-21K labels; commit them as after a driver's death: every byte is read."""
    staging = _Staging(work / "read", classes=CLASSES)
    seals = staging.seal(shards)
    staging.sealing.close()
    start = time.perf_counter()
    committing = staging.writer()
    manifest = committing.commit()
    seconds = time.perf_counter() - start
    staged = sum(entry.bytes for entry in manifest.files) / 1e9
    return {
        "shards": shards,
        "staged_gb": round(staged, 4),
        "seal_seconds": round(float(np.median(seals)), 4),
        "seal_gb_per_second": round(staged / shards / float(np.median(seals)), 3),
        "proof_seconds": round(seconds, 3),
        "proof_gb_per_second": round(staged / seconds, 3),
    }


def publishing(work: Path, few: int, many: int) -> dict[str, Any]:
    """Return what a shard costs when those who wrote it publish it.

    Labels are not read then, so they are few here; views are as many as beside labels of ImageNet-21K.
    """
    seconds = {}
    for shards in (few, many):
        staging = _Staging(work / f"published{shards}", classes=10)
        staging.seal(shards)
        start = time.perf_counter()
        staging.sealing.commit()
        seconds[shards] = time.perf_counter() - start
    return {
        "commit_seconds": {str(shards): round(value, 3) for shards, value in seconds.items()},
        "commit_seconds_per_shard": round((seconds[many] - seconds[few]) / (many - few), 5),
    }


class _Staging:
    """Staged work of shards as large as a task of ImageNet-21K makes them."""

    def __init__(self, path: Path, *, classes: int) -> None:
        self._path = path
        augmentation = preset_named("imagenet21k").label.augmentation((224, 224))
        self._header = PoolHeader(classes=classes, batch_size=ROWS, augmentation=augmentation)
        self._table = image_table(IMAGES, classes=classes, side=224)
        rng = np.random.default_rng(0)
        self._labels = torch.from_numpy(rng.normal(0, 2, (ROWS, classes)).astype(np.float32))
        self._codec = codec_named("f16")
        self.sealing = self.writer()

    def writer(self) -> PoolWriter:
        """Open a writer of shards as large as a task."""
        return PoolWriter(
            self._path,
            header=self._header,
            images=self._table,
            codec=self._codec,
            shard_bytes=1 << 40,
            shard_batches=BATCHES_PER_TASK,
        )

    def seal(self, shards: int) -> list[float]:
        """Seal so many shards; return the seconds each took."""
        seconds = []
        augmentation = self._header.augmentation
        for epoch in range(shards):
            for batch in range(BATCHES_PER_TASK):
                views = draw_views(
                    augmentation, self._table, seed=0, epoch=epoch, batch=batch, batch_size=ROWS
                )
                made = labelled(views, self._labels, self._codec)
                start = time.perf_counter()
                # The last one closes the shard.
                self.sealing.append(made)
            seconds.append(time.perf_counter() - start)
        return seconds
