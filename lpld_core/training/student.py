"""Training a student from a pool: batches drawn until the step budget is used, resumable exactly."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lpld_core.networks.models import network_source, seeded
from lpld_core.training.evaluate import Accuracy, ValidationSet
from lpld_core.training.losses import LossOf, StudentLoss, TrueClasses
from lpld_core.training.run_directory import TrainingRun
from lpld_core.training.settings import TrainSettings
from lpld_core.training.trainer import EpochFacts, Trainer
from lpld_labels.codecs.label_meaning import find_normalisation
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader import PoolLoader, pool_loader
from lpld_labels.pool.reader import PoolReader
from lpld_labels.replay.image_folder import check_images

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

SMALL_VIEWS_BELOW = 128


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
    out: str | os.PathLike[str],
    settings: TrainSettings,
    *,
    validation: ValidationSet | None = None,
    progress: Progress | None = None,
    check_progress: Progress | None = None,
) -> TrainResult:
    """Train until the budget is used: epochs x steps of an epoch, whatever the pool holds.

    out: the run's directory (see run_directory.py).
    Raises ImageMismatchError before the first step if the images are not the labelled ones.
    """
    _check(pool, settings, validation)
    settings = resolved(settings, pool)
    loss = StudentLoss(
        settings, label_kind=pool.header.label_kind, kept=pool.manifest.codec.parameters.get("k")
    )
    check_images(images_dir, pool.images, progress=check_progress)
    with seeded(settings.seed):
        model = network_source(settings.student or default_student(pool)).build(pool.classes).module
    trainer = Trainer(model, settings)
    run = TrainingRun(Path(out), {**settings.deciding(), "pool": pool.manifest.content_digest})
    start = _resume(run, trainer, loss)
    loader = pool_loader(
        pool,
        images_dir,
        batch_size=settings.batch_size,
        policy=settings.policy,
        seed=settings.seed,
        batches_per_epoch=epoch_steps(settings, pool),
        normalised=False,
        num_workers=settings.workers,
        cache_directory=settings.image_cache,
    )

    def evaluate() -> Accuracy | None:
        if validation is None or settings.mean is None or settings.std is None:
            return None
        return validation.accuracy(trainer.result, settings.mean, settings.std)

    accuracy = evaluate() if start == settings.epochs else None
    for epoch in range(start, settings.epochs):
        last = epoch + 1 == settings.epochs
        loss.start_epoch(epoch)
        record = {"temperature": loss.temperature, "student_temperature": loss.student_temperature}
        facts = _epoch(loader, trainer, loss, epoch, progress)
        loss.end_epoch()
        accuracy = evaluate() if last or (epoch + 1) % settings.evaluate_every == 0 else None
        run.log(_record(epoch, facts, accuracy) | record)
        if last or (epoch + 1) % settings.save_every == 0:
            run.save(epoch + 1, {**trainer.state(), **loss.state()})
    run.finish(trainer.result.state_dict(), _about(pool, settings))
    return TrainResult(
        weights=run.result,
        accuracy=accuracy,
        steps=sum(record["steps"] for record in run.records()),
        resumed_from=start,
    )


def resolved(settings: TrainSettings, pool: PoolReader) -> TrainSettings:
    """Return the settings with what the pool decides filled in; an unknown normalisation is refused."""
    mean, std = find_normalisation(pool.header, settings.mean, settings.std, where=pool.location)
    return replace(settings, student=settings.student or default_student(pool), mean=mean, std=std)


def default_student(pool: PoolReader) -> str:
    """Return the network the papers use for views of the pool's size."""
    small = pool.header.augmentation.output_height < SMALL_VIEWS_BELOW
    return "small-resnet18" if small else "resnet18"


def epoch_steps(settings: TrainSettings, pool: PoolReader) -> int:
    """Return how many label batches make an epoch."""
    images, rows = len(pool.images), pool.header.batch_size
    complete = bool((pool.index.rows == rows).all())
    if settings.epoch_steps == "stored" and complete:
        return max(1, images // rows)
    return -(-images // rows)


def _check(pool: PoolReader, settings: TrainSettings, validation: ValidationSet | None) -> None:
    if validation is not None:
        validation.require_classes(pool.classes)
    if settings.loss == "mse+gt" and int(pool.images.classes.max()) + 1 != pool.classes:
        raise InvalidArgumentError(
            "this loss needs the true classes, and the image folder has not as many as the labels",
            where=pool.location,
            expected=f"{pool.classes} class folders",
            got=int(pool.images.classes.max()) + 1,
            hint="train with the kl loss",
        )


def _resume(run: TrainingRun, trainer: Trainer, loss: StudentLoss) -> int:
    found = run.resume()
    if found is None:
        run.keep_log_before(0)
        return 0
    epoch, state = found
    trainer.load_state(state)
    loss.load_state(state)
    run.keep_log_before(epoch)
    return epoch


def _epoch(
    loader: PoolLoader, trainer: Trainer, loss: StudentLoss, epoch: int, progress: Progress | None
) -> EpochFacts:
    loader.set_epoch(epoch)
    steps = len(loader)
    all_steps = trainer.settings.epochs * steps

    def batches() -> Iterator[tuple[torch.Tensor, LossOf]]:
        for batch in loader:
            if len(batch.labels) < 2:
                continue  # BatchNorm cannot learn from a single view
            truth = TrueClasses(own=batch.targets, partner=batch.partner_targets, weight=batch.mix_strength)
            yield batch.images, loss.of(batch.labels.to(trainer.device), truth.to(trainer.device))

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


def _about(pool: PoolReader, settings: TrainSettings) -> dict[str, Any]:
    augmentation = pool.header.augmentation
    return {
        "network": settings.student,
        "classes": pool.classes,
        "preprocessing": {
            "input_size": [augmentation.output_height, augmentation.output_width],
            "mean": list(settings.mean or ()),
            "std": list(settings.std or ()),
        },
        "pool": pool.manifest.content_digest,
    }
