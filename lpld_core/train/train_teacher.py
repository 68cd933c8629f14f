"""Train a classifier from scratch on an image folder, to be a teacher if none can be downloaded."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # its usual name

from lpld_core.device import to_device
from lpld_core.images import rendered
from lpld_core.networks.batchnorm import batchnorm_layers
from lpld_core.networks.models import IMAGENET_MEAN, IMAGENET_STD, network_source, seeded
from lpld_core.networks.weights import load_into, read_weights, save_weights
from lpld_core.settings import ViewSettings
from lpld_core.teachers.teacher import output_classes
from lpld_core.train.evaluate import Accuracy, ValidationSet
from lpld_core.train.run_directory import TrainingRun, describe_network
from lpld_core.train.settings import TrainSettings
from lpld_core.train.trainer import EpochProgress, LossOf, Trainer, TrainingBatch
from lpld_core.unfinished import require_same_job, unfinished_beside, workplace
from lpld_labels.exec.job import Progress
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.render import ImageStore, batches_per_epoch, draw_views
from lpld_labels.render.images import FolderImages, class_names, scan_image_folder

TEACHER_VIEWS = ViewSettings(batch_size=64, crop_scale=(0.35, 1.0))
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

    out: safetensors file to write. network: network name; the default trains in minutes on a laptop.
    views: augmentation and batch size. recipe: all other settings; mean and std default to ImageNet's.
    """

    out: Path
    network: str = "small-resnet10:width=32,stem_stride=2"
    size: tuple[int, int] = (64, 64)
    views: ViewSettings = TEACHER_VIEWS
    recipe: TrainSettings = TEACHER_RECIPE


def train_teacher(
    images_dir: str | os.PathLike[str],
    job: TeacherJob,
    *,
    validation: ValidationSet | None = None,
    progress: Progress | None = None,
) -> Accuracy | None:
    """Train (or resume) and save, unless `job.out` is finished. Return the accuracy on `validation`."""
    table = scan_image_folder(images_dir)
    classes = int(table.classes.max()) + 1
    if validation is not None:
        validation.require_classes(classes, class_names(images_dir))
    recipe = job.recipe
    settings = replace(recipe, mean=recipe.mean or IMAGENET_MEAN, std=recipe.std or IMAGENET_STD)
    with seeded(settings.seed):
        model = network_source(job.network).build(classes).module
    trainer = Trainer(model, settings)
    decided = {
        **settings.deciding(),
        "network": job.network,
        "size": job.size,
        "views": asdict(job.views),
        "images": table.digest().hex(),
    }
    training: dict[str, Any] = json.loads(json.dumps(decided))
    with workplace(unfinished_beside(job.out)) as directory:
        found = trained_by(job.out)
        if found is None:
            run = TrainingRun(directory, training, otherwise="delete this one")
            _train(job, trainer, ImageStore(FolderImages(images_dir, table)), run, progress)
            about = describe_network(job.network, classes, job.size, settings) | {"training": training}
            save_weights(job.out, trainer.result.state_dict(), about, within=directory)
        else:
            require_same_job(
                found, training, what="a different teacher", where=job.out, otherwise="delete this one"
            )
            load_into(trainer.result, read_weights(job.out))
    return trainer.accuracy(validation)


def check_network(job: TeacherJob, classes: int) -> None:
    """Refuse a network that has no BatchNorm layers or fails on images of this size."""
    module = network_source(job.network).build(classes).module.eval()
    output_classes(module, job.size, job.network)
    batchnorm_layers(module, name=f"teacher {job.network}")


def trained_by(weights: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the settings a teacher was trained with, or None if `train_teacher` did not write the file."""
    path = Path(weights)
    if not path.exists():
        return None
    found: dict[str, Any] | None = read_weights(path).about.get("training")
    return found


def _train(
    job: TeacherJob, trainer: Trainer, store: ImageStore, run: TrainingRun, progress: Progress | None
) -> None:
    """Train the remaining epochs; save after each epoch, and every SAVE_SECONDS during an epoch."""
    steps = batches_per_epoch(len(store), job.views.batch_size)
    start, begin = 0, None
    found = run.resume()
    if found is not None:
        trainer.load_state(found.state)
        start, begin = found.epochs_done, found.within
    for epoch in range(start, job.recipe.epochs):

        def after_step(so_far: EpochProgress, epoch: int = epoch) -> None:
            if so_far.steps < steps and run.due():
                run.save(trainer.state(), epochs_done=epoch, steps=epoch * steps, within=so_far)
            if progress is not None:
                progress(epoch * steps + so_far.steps, job.recipe.epochs * steps)

        keys = [BatchKey(epoch, step) for step in range(begin.steps if begin else 0, steps)]
        with closing(_batches(job, store, trainer, keys)) as batches:
            trainer.run_epoch(epoch, batches, steps=steps, begin=begin, after_step=after_step)
        begin = None
        run.save(trainer.state(), epochs_done=epoch + 1, steps=(epoch + 1) * steps, within=None)


def _batches(
    job: TeacherJob, store: ImageStore, trainer: Trainer, keys: list[BatchKey]
) -> Generator[TrainingBatch, None, None]:
    augmentation = job.views.augmentation(job.size)

    def draw(key: BatchKey) -> ViewBatch:
        return draw_views(
            augmentation,
            store.table,
            seed=job.recipe.seed,
            epoch=key.epoch,
            batch=key.batch,
            batch_size=job.views.batch_size,
        )

    workers = max(1, trainer.settings.workers)
    with closing(rendered(keys, draw, store, augmentation, workers=workers)) as batches:
        for views, pixels in batches:
            own, partner, weight = (to_device(part, trainer.device) for part in _true_classes(views, store))
            yield TrainingBatch(pixels, true_class_loss(own, partner, weight, job.recipe.label_smoothing))


def _true_classes(views: ViewBatch, store: ImageStore) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return, per view, its own class and the mixed-in class, int64 [B], and the weight of its own class."""
    own = store.table.classes[views.images].astype(np.int64)
    partner, weight = own, torch.ones(views.rows)
    if views.mix is not None:
        partner = own[views.mix.partner]
        weight = torch.full((views.rows,), views.mix.strength)
    return torch.from_numpy(own), torch.from_numpy(partner), weight


def true_class_loss(
    own: torch.Tensor, partner: torch.Tensor, weight: torch.Tensor, label_smoothing: float = 0.0
) -> LossOf:
    """Return the loss function: weighted cross-entropy with the classes of the two images in each view."""

    def loss_of(output: torch.Tensor, rows: slice) -> torch.Tensor:
        first, second = (
            F.cross_entropy(output, classes[rows], reduction="none", label_smoothing=label_smoothing)
            for classes in (own, partner)
        )
        return (weight[rows] * first + (1 - weight[rows]) * second).mean()

    return loss_of
