"""Training a classifier from scratch on an image folder: the teacher, where none can be downloaded."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lpld_core.networks.batchnorm import batchnorm_layers
from lpld_core.networks.models import IMAGENET_MEAN, IMAGENET_STD, network_source, seeded
from lpld_core.networks.weights import load_into, read_weights, save_weights
from lpld_core.prefetch import rendered
from lpld_core.settings import ViewSettings
from lpld_core.teachers.teacher import output_classes
from lpld_core.train.evaluate import Accuracy, ValidationSet
from lpld_core.train.losses import TrueClasses, mixed_cross_entropy, true_classes
from lpld_core.train.run_directory import TrainingRun
from lpld_core.train.settings import TrainSettings
from lpld_core.train.trainer import EpochSoFar, Trainer, TrainingBatch
from lpld_core.unfinished import require_same_job, unfinished_beside, workplace
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

    out: the safetensors file to write. views: how images are augmented, and the batch size; its
    epochs do not count, those of `recipe` do. mean, std, seed: replace those of `recipe`.
    """

    out: Path
    network: str = SMALL_TEACHER
    size: tuple[int, int] = (64, 64)
    views: ViewSettings = TEACHER_VIEWS
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

    Killed, the same call goes on from the last state that was saved, beside the file to write; where the
    file is there already and of the same job, it is what is measured.
    images: the folder's table, if it was scanned already. `load_teacher(job.network,
    weights=job.out)` gives the result back with its size and normalisation.
    """
    table = images if images is not None else scan_image_folder(images_dir)
    classes = int(table.classes.max()) + 1
    if validation is not None:
        validation.require_classes(classes, class_names(images_dir))
    with seeded(job.seed):
        model = network_source(job.network).build(classes).module
    settings = replace(
        job.recipe, mean=job.mean, std=job.std, seed=job.seed, device=str(device), amp=amp, workers=workers
    )
    trainer = Trainer(model, settings)
    store = ImageStore(FolderImages(images_dir, table))
    about = _about(job, settings, table, classes)
    with workplace(unfinished_beside(job.out)) as directory:
        found = trained_by(job.out)
        if found is None:
            run = TrainingRun(directory, about["training"])
            _train(job, trainer, store, run, workers=workers, progress=progress)
            save_weights(job.out, model.state_dict(), about, within=directory)
        else:
            require_same_job(
                found, about["training"], what="another teacher", where=job.out, otherwise="delete this one"
            )
            load_into(model, read_weights(job.out))
    return None if validation is None else validation.accuracy(model, job.mean, job.std)


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
    run: TrainingRun,
    *,
    workers: int,
    progress: Progress | None,
) -> None:
    """Train the epochs that are left; the state is kept after each, and now and then within one."""
    steps = batches_per_epoch(len(store), job.views.batch_size)
    found = run.resume()
    if found is not None:
        trainer.load_state(found.state)
    start, within = (0, None) if found is None else (found.epochs_done, found.within)
    for epoch in range(start, job.recipe.epochs):
        begin = within if epoch == start else None

        def after_step(so_far: EpochSoFar, rate: float, epoch: int = epoch) -> None:
            del rate
            if so_far.steps < steps and run.due():
                run.save(epoch, trainer.state(), within=so_far)
            if progress is not None:
                progress(epoch * steps + so_far.steps, job.recipe.epochs * steps)

        first = 0 if begin is None else begin.steps
        with closing(_batches(job, store, trainer, epoch, range(first, steps), workers)) as batches:
            trainer.run_epoch(epoch, batches, steps=steps, begin=begin, after_step=after_step)
        run.save(epoch + 1, trainer.state())


def _batches(
    job: TeacherJob, store: ImageStore, trainer: Trainer, epoch: int, steps: range, workers: int
) -> Generator[TrainingBatch, None, None]:
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

    keys = [BatchKey(epoch, batch) for batch in steps]
    with closing(rendered(keys, draw, store, augmentation, workers=workers)) as batches:
        for views, pixels in batches:
            truth = true_classes(views, store).to(trainer.device)
            yield TrainingBatch(pixels, partial(_loss, truth, job.recipe.label_smoothing), len(pixels))


def _loss(truth: TrueClasses, smoothing: float, output: torch.Tensor, rows: slice) -> torch.Tensor:
    return mixed_cross_entropy(output, truth[rows], label_smoothing=smoothing)


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
            "mean": list(job.mean),
            "std": list(job.std),
        },
        "training": json.loads(json.dumps(decided)),
    }
