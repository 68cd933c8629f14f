"""Training a classifier from scratch on an image folder: the teacher, where none can be downloaded."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # its usual name

from lpld_core.images import rendered
from lpld_core.networks.batchnorm import batchnorm_layers
from lpld_core.networks.models import IMAGENET_MEAN, IMAGENET_STD, network_source, seeded
from lpld_core.networks.weights import load_into, read_weights, save_weights
from lpld_core.settings import ViewSettings
from lpld_core.teachers.teacher import output_classes
from lpld_core.train.evaluate import Accuracy, ValidationSet
from lpld_core.train.run_directory import CHECKPOINT
from lpld_core.train.settings import TrainSettings
from lpld_core.train.trainer import EpochProgress, Trainer, TrainingBatch
from lpld_core.unfinished import Checkpoint, require_same_job, unfinished_beside, workplace
from lpld_labels.exec.job import Progress
from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.render import ImageStore, batches_per_epoch, draw_views
from lpld_labels.render.images import FolderImages, class_names, scan_image_folder

SMALL_TEACHER = "small-resnet10:width=32,stem_stride=2"
"""1.2 million parameters: trains in minutes on a laptop at 64 px."""
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

    out: the safetensors file to write. views: how images are augmented, and the batch size. recipe: the rest;
    without a mean and std, ImageNet's.
    """

    out: Path
    network: str = SMALL_TEACHER
    size: tuple[int, int] = (64, 64)
    views: ViewSettings = TEACHER_VIEWS
    recipe: TrainSettings = TEACHER_RECIPE


def train_teacher(
    images_dir: str | os.PathLike[str],
    job: TeacherJob,
    *,
    images: ImageTable | None = None,
    validation: ValidationSet | None = None,
    progress: Progress | None = None,
) -> Accuracy | None:
    """Train on the folder's own classes and save the weights; return the accuracy on `validation`.

    The same call resumes after a kill, from the state saved beside the file to write; a finished file of the
    same job is only measured.
    images: the folder's table, if it was scanned already. `load_teacher(job.network,
    weights=job.out)` gives the result back with its size and normalisation.
    """
    table = images if images is not None else scan_image_folder(images_dir)
    classes = int(table.classes.max()) + 1
    if validation is not None:
        validation.require_classes(classes, class_names(images_dir))
    recipe = job.recipe
    settings = replace(recipe, mean=recipe.mean or IMAGENET_MEAN, std=recipe.std or IMAGENET_STD)
    with seeded(settings.seed):
        model = network_source(job.network).build(classes).module
    trainer = Trainer(model, settings)
    store = ImageStore(FolderImages(images_dir, table))
    about = _about(job, settings, table, classes)
    with workplace(unfinished_beside(job.out)) as directory:
        found = trained_by(job.out)
        if found is None:
            _train(job, trainer, store, Checkpoint(directory / CHECKPOINT), about["training"], progress)
            save_weights(job.out, model.state_dict(), about, within=directory)
        else:
            require_same_job(
                found, about["training"], what="another teacher", where=job.out, otherwise="delete this one"
            )
            load_into(model, read_weights(job.out))
    if validation is None or settings.mean is None or settings.std is None:
        return None
    return validation.accuracy(model, settings.mean, settings.std)


def check_network(job: TeacherJob, classes: int) -> None:
    """Refuse, before anything else, a network that cannot be squeezed or refuses images of this size."""
    module = network_source(job.network).build(classes).module.eval()
    output_classes(module, job.size, job.network)
    batchnorm_layers(module, name=f"teacher {job.network}")


def trained_by(weights: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return what decided the training of a teacher, or None where the file was not made here."""
    path = Path(weights)
    if not path.exists():
        return None
    found: dict[str, Any] | None = read_weights(path).about.get("training")
    return found


def _train(
    job: TeacherJob,
    trainer: Trainer,
    store: ImageStore,
    checkpoint: Checkpoint,
    settings: dict[str, Any],
    progress: Progress | None,
) -> None:
    """Train the epochs that are left; the state is saved after each, and now and then within one."""
    steps = batches_per_epoch(len(store), job.views.batch_size)
    start, within = 0, None
    found = checkpoint.load()
    if found is not None:
        require_same_job(
            found.about.get("settings", {}),
            settings,
            what="another training run",
            where=checkpoint.path,
            otherwise="delete this one",
        )
        trainer.load_state(found.tensors)
        start = int(found.about["epochs_done"])
        within = None if found.about["within"] is None else EpochProgress(**found.about["within"])
    for epoch in range(start, job.recipe.epochs):
        begin = within if epoch == start else None

        def after_step(so_far: EpochProgress, epoch: int = epoch) -> None:
            if so_far.steps < steps and checkpoint.due():
                state = trainer.state()
                checkpoint.save(state, epochs_done=epoch, within=asdict(so_far), settings=settings)
            if progress is not None:
                progress(epoch * steps + so_far.steps, job.recipe.epochs * steps)

        first = 0 if begin is None else begin.steps
        with closing(_batches(job, store, trainer, epoch, range(first, steps))) as batches:
            trainer.run_epoch(epoch, batches, steps=steps, begin=begin, after_step=after_step)
        checkpoint.save(trainer.state(), epochs_done=epoch + 1, within=None, settings=settings)


def _batches(
    job: TeacherJob, store: ImageStore, trainer: Trainer, epoch: int, steps: range
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

    keys = [BatchKey(epoch, batch) for batch in steps]
    workers = max(1, trainer.settings.workers)
    with closing(rendered(keys, draw, store, augmentation, workers=workers)) as batches:
        for views, pixels in batches:
            truth = [part.to(trainer.device) for part in true_classes(views, store)]
            yield TrainingBatch(pixels, partial(_loss, truth, job.recipe.label_smoothing))


def true_classes(views: ViewBatch, store: ImageStore) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return each view's class and that of the image mixed into it, int64 [B], and the weight of its own."""
    own = store.table.classes[views.images].astype(np.int64)
    partner, weight = own, torch.ones(views.rows)
    if views.mix is not None:
        partner = own[views.mix.partner]
        weight = torch.full((views.rows,), views.mix.strength)
    return torch.from_numpy(own), torch.from_numpy(partner), weight


def _loss(truth: Sequence[torch.Tensor], smoothing: float, output: torch.Tensor, rows: slice) -> torch.Tensor:
    own, partner, weight = (part[rows] for part in truth)
    return mixed_cross_entropy(output, own, partner, weight, label_smoothing=smoothing)


def mixed_cross_entropy(
    output: torch.Tensor,
    own: torch.Tensor,
    partner: torch.Tensor,
    weight: torch.Tensor,
    *,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Cross-entropy against the true classes of both images of a mixed view, by their weights."""
    first = F.cross_entropy(output, own, reduction="none", label_smoothing=label_smoothing)
    second = F.cross_entropy(output, partner, reduction="none", label_smoothing=label_smoothing)
    return (weight * first + (1 - weight) * second).mean()


def _about(job: TeacherJob, settings: TrainSettings, table: ImageTable, classes: int) -> dict[str, Any]:
    """Return what the weights file says: the network, what it expects, and what decided its training."""
    decided = {
        **settings.deciding(),
        "network": job.network,
        "size": job.size,
        "views": asdict(job.views),
        "images": table.digest().hex(),
    }
    return {
        "network": job.network,
        "classes": classes,
        "preprocessing": {
            "input_size": list(job.size),
            "mean": list(settings.mean or ()),
            "std": list(settings.std or ()),
        },
        "training": json.loads(json.dumps(decided)),
    }
