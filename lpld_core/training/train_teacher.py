"""Training a classifier from scratch on an image folder: the teacher, where none can be downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lpld_core.images.rendering import rendered
from lpld_core.networks.models import IMAGENET_MEAN, IMAGENET_STD, network_source, seeded
from lpld_core.networks.weights import save_weights
from lpld_core.training.evaluate import Accuracy, ValidationSet
from lpld_core.training.losses import LossOf, mixed_cross_entropy, true_classes
from lpld_core.training.presets import LabelRecipe
from lpld_core.training.settings import TrainSettings
from lpld_core.training.trainer import Trainer
from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.replay import ImageStore, batches_per_epoch, draw_views
from lpld_labels.replay.image_folder import scan_image_folder

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

SMALL_TEACHER = "small-resnet10:width=32,stem_stride=2"
"""1.2 million parameters: trains in minutes on a laptop at 64 px."""
TEACHER_VIEWS = LabelRecipe(batch_size=64, crop_scale=(0.35, 1.0))
TEACHER_RECIPE = TrainSettings(
    epochs=30,
    learning_rate=0.002,
    weight_decay=0.05,
    decay_on="all",
    warmup_epochs=1,
    rate_steps="step",
    label_smoothing=0.1,
)


@dataclass(frozen=True, kw_only=True)
class TeacherJob:
    """How to train a classifier with hard labels.

    out: the safetensors file to write. views: how images are augmented, and the batch size; its
    epochs do not count, those of `recipe` do. mean, std, seed: replace those of `recipe`.
    """

    out: Path
    network: str = SMALL_TEACHER
    size: tuple[int, int] = (64, 64)
    views: LabelRecipe = TEACHER_VIEWS
    recipe: TrainSettings = TEACHER_RECIPE
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    seed: int = 0


def train_teacher(
    images_dir: str | os.PathLike[str],
    job: TeacherJob,
    *,
    images: ImageTable | None = None,
    validation: ValidationSet | None = None,
    device: str | torch.device = "cpu",
    amp: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> Accuracy | None:
    """Train on the folder's own classes and save the weights; return the accuracy on `validation`.

    images: the folder's table, if it was scanned already. `load_teacher(job.network,
    weights=job.out)` gives the result back with its size and normalisation.
    """
    table = images if images is not None else scan_image_folder(images_dir)
    classes = int(table.classes.max()) + 1
    if validation is not None:
        validation.require_classes(classes)
    with seeded(job.seed):
        model = network_source(job.network).build(classes).module
    settings = replace(
        job.recipe, mean=job.mean, std=job.std, seed=job.seed, device=str(device), amp=amp, workers=workers
    )
    trainer = Trainer(model, settings)
    store = ImageStore(images_dir, table)
    steps = batches_per_epoch(len(table), job.views.batch_size)
    for epoch in range(job.recipe.epochs):

        def report(done: int, total: int, before: int = epoch * steps) -> None:
            del total
            if progress is not None:
                progress(before + done, job.recipe.epochs * steps)

        with closing(_batches(job, store, trainer, epoch, steps, workers)) as batches:
            trainer.run_epoch(epoch, batches, steps=steps, progress=report)
    save_weights(job.out, model.state_dict(), _about(job, classes))
    return None if validation is None else validation.accuracy(model, job.mean, job.std)


def _batches(
    job: TeacherJob, store: ImageStore, trainer: Trainer, epoch: int, steps: int, workers: int
) -> Generator[tuple[torch.Tensor, LossOf], None, None]:
    augmentation = job.views.augmentation(job.size)

    def draw(key: BatchKey) -> ViewBatch:
        return draw_views(
            augmentation,
            store.table,
            seed=job.seed,
            epoch=key.epoch,
            batch=key.batch,
            batch_size=job.views.batch_size,
        )

    keys = [BatchKey(epoch, batch) for batch in range(steps)]
    with closing(rendered(keys, draw, store, augmentation, workers=workers)) as batches:
        for views, pixels in batches:
            if views.rows < 2:
                continue  # BatchNorm cannot learn from a single view
            truth = true_classes(views, store).to(trainer.device)
            loss = partial(mixed_cross_entropy, truth=truth, label_smoothing=job.recipe.label_smoothing)
            yield pixels, loss


def _about(job: TeacherJob, classes: int) -> dict[str, Any]:
    return {
        "network": job.network,
        "classes": classes,
        "preprocessing": {
            "input_size": list(job.size),
            "mean": list(job.mean),
            "std": list(job.std),
        },
    }
