"""What handing out a task, sealing a shard and committing cost, measured apart from labelling."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.label_source import image_table
from benchmarks.scale_out.engines import ray
from lpld_core.relabel.rehearsal import labelled
from lpld_core.training.presets import preset_named
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.jobs.job import Job, Steps
from lpld_labels.pool.writer import PoolWriter
from lpld_labels.replay import draw_views

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


def store(work: Path, shards: int, batches_per_shard: int) -> dict[str, Any]:
    """Seal shards of ImageNet-21K labels and commit them as another process would: every byte is read."""
    augmentation = preset_named("imagenet21k").label.augmentation((224, 224))
    header = PoolHeader(classes=CLASSES, batch_size=ROWS, augmentation=augmentation)
    table = image_table(IMAGES, classes=CLASSES, side=224)
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.normal(0, 2, (ROWS, CLASSES)).astype(np.float32))

    def writer() -> PoolWriter:
        return PoolWriter(work / "pool", header=header, images=table)

    seals = []
    sealing = writer()
    for shard in range(shards):
        for number in range(batches_per_shard):
            views = draw_views(augmentation, table, seed=0, epoch=shard, batch=number, batch_size=ROWS)
            sealing.append(labelled(views, labels, sealing.codec))
        start = time.perf_counter()
        sealing.flush()
        seals.append(time.perf_counter() - start)
    committing = writer()
    staged = committing.staged_bytes()
    start = time.perf_counter()
    committing.commit()
    seconds = time.perf_counter() - start
    return {
        "shards": shards,
        "staged_gb": round(staged / 1e9, 4),
        "seal_seconds": round(float(np.median(seals)), 4),
        "seal_gb_per_second": round(staged / shards / 1e9 / float(np.median(seals)), 3),
        "commit_seconds": round(seconds, 3),
        "commit_gb_per_second": round(staged / 1e9 / seconds, 3),
    }
