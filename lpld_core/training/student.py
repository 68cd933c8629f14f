"""Training a student from a pool: batches drawn until the step budget is used, resumable exactly."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lpld_core.networks.models import IMAGENET_MEAN, IMAGENET_STD, network_source, seeded
from lpld_core.training.evaluate import Accuracy, ValidationSet
from lpld_core.training.losses import TrueClasses, student_loss
from lpld_core.training.presets import TrainRecipe
from lpld_core.training.run_directory import TrainingRun
from lpld_core.training.trainer import EpochFacts, LossOf, Trainer
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader import PoolLoader, pool_loader
from lpld_labels.pool.reader import PoolReader
from lpld_labels.replay.image_folder import check_images

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

SMALL_VIEWS_BELOW = 128


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """What to train and where to put it.

    out: the run's directory (see run_directory.py). student: a network name; None chooses ResNet-18,
    in its small-image form for views below 128 px. sampling: a policy of lpld_labels.loader.sampling.
    evaluate_every, save_every: in epochs; the last epoch always does both.
    image_cache: directory for decoded images that processes share; None keeps them in memory.
    """

    out: Path
    recipe: TrainRecipe
    student: str | None = None
    seed: int = 0
    sampling: str = "batches"
    evaluate_every: int = 10
    save_every: int = 1
    image_cache: Path | None = None


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Where the student is and how good; accuracy is None without a validation folder."""

    weights: Path
    accuracy: Accuracy | None
    steps: int
    resumed_from: int


def train_student(
    pool: PoolReader,
    images_dir: str | os.PathLike[str],
    job: TrainJob,
    *,
    validation: ValidationSet | None = None,
    device: str | torch.device = "cpu",
    amp: bool = False,
    workers: int = 0,
    progress: Progress | None = None,
    check_progress: Progress | None = None,
) -> TrainResult:
    """Train until the budget is used: epochs x ceil(images / batch size) steps, whatever the pool holds.

    workers: processes that prepare batches ahead; with 0 they are made between steps.
    Raises ImageMismatchError before the first step if the images are not the labelled ones.
    """
    _check(pool, job, validation)
    check_images(images_dir, pool.images, progress=check_progress)
    name = job.student or default_student(pool)
    with seeded(job.seed):
        model = network_source(name).build(pool.classes).module
    mean, std = preprocessing(pool)
    trainer = Trainer(model, job.recipe, mean=mean, std=std, seed=job.seed, device=device, amp=amp)
    run = TrainingRun(job.out, _settings(pool, job, name, amp))
    start = _resume(run, trainer)
    loader = pool_loader(
        pool,
        images_dir,
        policy=job.sampling,
        seed=job.seed,
        normalised=False,
        num_workers=workers,
        cache_directory=job.image_cache,
    )
    evaluate = partial(validation.accuracy, model, mean, std) if validation is not None else lambda: None
    accuracy = evaluate() if start == job.recipe.epochs else None
    for epoch in range(start, job.recipe.epochs):
        last = epoch + 1 == job.recipe.epochs
        facts = _epoch(loader, trainer, epoch, label_kind=pool.header.label_kind, progress=progress)
        accuracy = evaluate() if last or (epoch + 1) % job.evaluate_every == 0 else None
        run.log(_record(epoch, facts, accuracy))
        if last or (epoch + 1) % job.save_every == 0:
            run.save(epoch + 1, trainer.state())
    run.finish(model.state_dict(), _about(pool, name))
    return TrainResult(
        weights=run.result,
        accuracy=accuracy,
        steps=sum(record["steps"] for record in run.records()),
        resumed_from=start,
    )


def default_student(pool: PoolReader) -> str:
    """Return the network the papers use for views of the pool's size."""
    small = pool.header.augmentation.output_height < SMALL_VIEWS_BELOW
    return "small-resnet18" if small else "resnet18"


def preprocessing(pool: PoolReader) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and std of the pool's first teacher, or ImageNet's where it names none."""
    teacher = pool.header.teachers[0] if pool.header.teachers else None
    if teacher is None or teacher.mean is None or teacher.std is None:
        return IMAGENET_MEAN, IMAGENET_STD
    return teacher.mean, teacher.std


def _check(pool: PoolReader, job: TrainJob, validation: ValidationSet | None) -> None:
    if validation is not None:
        validation.require_classes(pool.classes)
    if job.recipe.loss == "mse+gt" and int(pool.images.classes.max()) + 1 != pool.classes:
        raise InvalidArgumentError(
            "this loss needs the true classes, and the image folder has not as many as the labels",
            where=pool.location,
            expected=f"{pool.classes} class folders",
            got=int(pool.images.classes.max()) + 1,
            hint="train with the kl loss",
        )


def _settings(pool: PoolReader, job: TrainJob, student: str, amp: bool) -> dict[str, Any]:
    """Return what decides the outcome, so that a run is never continued as another."""
    return {
        **asdict(job.recipe),
        "student": student,
        "seed": job.seed,
        "sampling": job.sampling,
        "amp": amp,
        "pool": pool.manifest.content_digest,
    }


def _resume(run: TrainingRun, trainer: Trainer) -> int:
    found = run.resume()
    if found is None:
        run.keep_log_before(0)
        return 0
    epoch, state = found
    trainer.load_state(state)
    run.keep_log_before(epoch)
    return epoch


def _epoch(
    loader: PoolLoader, trainer: Trainer, epoch: int, *, label_kind: str, progress: Progress | None
) -> EpochFacts:
    loader.set_epoch(epoch)
    steps = len(loader)
    all_steps = trainer.recipe.epochs * steps

    def batches() -> Iterator[tuple[torch.Tensor, LossOf]]:
        for batch in loader:
            if len(batch.labels) < 2:
                continue  # BatchNorm cannot learn from a single view
            truth = TrueClasses(own=batch.targets, partner=batch.partner_targets, weight=batch.mix_strength)
            loss = partial(
                student_loss,
                trainer.recipe,
                labels=batch.labels.to(trainer.device),
                truth=truth.to(trainer.device),
                label_kind=label_kind,
            )
            yield batch.images, loss

    def report(done: int, total: int) -> None:
        del total
        if progress is not None:
            progress(epoch * steps + done, all_steps)

    return trainer.run_epoch(epoch, batches(), steps=steps, progress=report)


def _record(epoch: int, facts: EpochFacts, accuracy: Accuracy | None) -> dict[str, Any]:
    return {
        "epoch": epoch,
        **asdict(facts),
        "top1": None if accuracy is None else accuracy.top1,
        "top5": None if accuracy is None else accuracy.top5,
    }


def _about(pool: PoolReader, student: str) -> dict[str, Any]:
    augmentation = pool.header.augmentation
    mean, std = preprocessing(pool)
    return {
        "network": student,
        "classes": pool.classes,
        "preprocessing": {
            "input_size": [augmentation.output_height, augmentation.output_width],
            "mean": list(mean),
            "std": list(std),
        },
        "pool": pool.manifest.content_digest,
    }
