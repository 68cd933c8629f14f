"""Training a student from a pool: batches drawn until the step budget is used, resumable exactly."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lpld_core.networks.models import network_source, seeded
from lpld_core.networks.weights import load_into
from lpld_core.train.evaluate import Accuracy, ValidationSet
from lpld_core.train.losses import StudentLoss
from lpld_core.train.ranks import ALONE, Ranks, lost_processes_reported
from lpld_core.train.run_directory import TrainingRun, require_run_directory
from lpld_core.train.settings import TrainSettings
from lpld_core.train.trainer import EpochProgress, Trainer, TrainingBatch
from lpld_labels.codecs.label_semantics import find_normalisation
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.images import ImageTable
from lpld_labels.loader import PoolLoader, pool_loader
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.images import check_images, find_images

Watch = Callable[[EpochProgress, Accuracy | None], None]
"""Called with how the epoch is doing, and the last accuracy measured."""

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
    images_dir: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    settings: TrainSettings,
    *,
    validation: ValidationSet | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
    check_progress: Progress | None = None,
    overwrite: bool = False,
    ranks: Ranks = ALONE,
) -> TrainResult:
    """Train until the budget is used: epochs x steps of an epoch, whatever the pool holds.

    images_dir: the labelled image folder; None for a pool that carries its images.
    ranks: processes that all call this and train one student together, as `joined_ranks` gives them; the
    first one alone touches `out`. A run may resume with another number of them.
    out: the run's directory (see run_directory.py). watch: called after each step, before `progress`.
    overwrite: delete an earlier run of other settings.
    Raises ImageMismatchError before the first step if the images are not the labelled ones.
    """
    _check(pool, settings, validation)
    settings = resolved(settings, pool)
    loss = StudentLoss(
        settings, label_kind=pool.header.label_kind, kept=pool.manifest.codec.parameters.get("k")
    )
    with seeded(settings.seed):
        model = network_source(settings.student or default_student(pool)).build(pool.classes).module
    check_images(find_images(pool, images_dir), progress=check_progress)
    require_run_directory(Path(out))
    about = {**settings.deciding(), "pool": pool.manifest.content_digest}
    run = TrainingRun(Path(out), about, overwrite=overwrite)
    loader = pool_loader(
        pool,
        images_dir,
        batch_size=_rows_per_process(settings, pool, ranks.world),
        sampling=settings.sampling,
        seed=settings.seed,
        batches_per_epoch=epoch_steps(pool),
        rank=ranks.rank,
        world_size=ranks.world,
        normalise=False,
        num_workers=settings.workers,
        cache_directory=settings.image_cache,
    )
    training = _Training(Trainer(model, settings, ranks), loss, run, loader, validation, progress, watch)
    with lost_processes_reported(), run.at_work() if ranks.first else contextlib.nullcontext():
        finished = ranks.broadcast(run.finished() if ranks.first else None)
        if finished is not None:
            load_into(training.trainer.result, finished)
            start, steps, accuracy = settings.epochs, int(finished.about["steps"]), training.evaluate()
        else:
            start = training.resume()
            accuracy = training.run(start)
            steps = training.steps
            if ranks.first:
                run.finish(training.trainer.result.state_dict(), _about(pool, settings) | {"steps": steps})
    return TrainResult(weights=run.result, accuracy=accuracy, steps=steps, resumed_from=start)


class _Training:
    """The epochs of a run: train, evaluate, log, save."""

    def __init__(
        self,
        trainer: Trainer,
        loss: StudentLoss,
        run: TrainingRun,
        loader: PoolLoader,
        validation: ValidationSet | None,
        progress: Progress | None,
        watch: Watch | None,
    ) -> None:
        self.trainer, self._loss, self._run, self._loader = trainer, loss, run, loader
        self._validation, self._progress, self._watch = validation, progress, watch
        self._begin: EpochProgress | None = None
        self._accuracy: Accuracy | None = None
        self.steps = 0

    def resume(self) -> int:
        """Resume from the checkpoint, if there is one; return how many epochs are done."""
        ranks = self.trainer.ranks
        found = ranks.broadcast(self._run.resume() if ranks.first else None)
        if found is None:
            if ranks.first:
                self._save(0)
            return 0
        self.trainer.load_state(found.state)
        self._loss.load_state(found.state)
        self._begin, self.steps = found.within, found.steps
        return found.epochs_done

    def run(self, start: int) -> Accuracy | None:
        """Train the epochs that are left; return the accuracy at the end."""
        settings = self.trainer.settings
        if start == settings.epochs:
            return self.evaluate()
        for epoch in range(start, settings.epochs):
            last = epoch + 1 == settings.epochs
            self._loss.start_epoch(epoch)
            record: dict[str, Any] = {
                "temperature": self._loss.temperature,
                "student_temperature": self._loss.student_temperature,
            }
            done = self._epoch(epoch)
            self._loss.end_epoch(self.trainer.ranks)
            measured = self.evaluate() if last or (epoch + 1) % settings.evaluate_every == 0 else None
            self._accuracy = measured or self._accuracy
            self.steps += done.steps
            if not self.trainer.ranks.first:
                continue
            record |= {
                "epoch": epoch,
                "loss": done.loss,
                "learning_rate": done.learning_rate,
                "steps": done.steps,
                "images": done.images,
                "seconds": done.seconds,
                "top1": None if measured is None else measured.top1,
                "top5": None if measured is None else measured.top5,
            }
            self._run.log(record)
            if last or (epoch + 1) % settings.save_every == 0:
                self._save(epoch + 1)
        return self._accuracy

    def evaluate(self) -> Accuracy | None:
        """Return the accuracy now, if there is a validation set."""
        settings = self.trainer.settings
        if self._validation is None or settings.mean is None or settings.std is None:
            return None
        ranks = self.trainer.ranks
        return self._validation.accuracy(self.trainer.result, settings.mean, settings.std, ranks=ranks)

    def _save(self, epochs_done: int, within: EpochProgress | None = None) -> None:
        state = {**self.trainer.state(), **self._loss.state()}
        self._run.save(state, epochs_done=epochs_done, steps=self.steps, within=within)

    def _epoch(self, epoch: int) -> EpochProgress:
        begin, self._begin = self._begin, None
        self._loader.set_epoch(epoch)
        steps = len(self._loader)
        if begin is not None:
            self._loader.skip_to(epoch, begin.steps)

        def after_step(so_far: EpochProgress) -> None:
            # Never after the last step: what it leaves for the calibration is not in a checkpoint.
            if self.trainer.ranks.first and so_far.steps < steps and self._run.due():
                self._save(epoch, within=so_far)
            if self._watch is not None:
                self._watch(so_far, self._accuracy)
            if self._progress is not None:
                self._progress(epoch * steps + so_far.steps, self.trainer.settings.epochs * steps)

        return self.trainer.run_epoch(epoch, self._batches(), steps=steps, begin=begin, after_step=after_step)

    def _batches(self) -> Iterator[TrainingBatch]:
        device = self.trainer.device
        for batch in self._loader:
            loss_of = self._loss.of(batch.labels.to(device), batch.targets.to(device))
            yield TrainingBatch(batch.images, loss_of)


def resolved(settings: TrainSettings, pool: PoolReader) -> TrainSettings:
    """Return the settings with what the pool decides filled in; an unknown normalisation is refused."""
    mean, std = find_normalisation(pool.header, settings.mean, settings.std, where=pool.location)
    return replace(settings, student=settings.student or default_student(pool), mean=mean, std=std)


def default_student(pool: PoolReader) -> str:
    """Return the network the papers use for views of the pool's size."""
    small = pool.header.augmentation.output_height < SMALL_VIEWS_BELOW
    return "small-resnet18" if small else "resnet18"


def epoch_steps(pool: PoolReader) -> int:
    """Return how many label batches make an epoch: images / batch size.

    Rounded down where the pool holds complete batches only, as pruned pools do, and up where it holds others.
    """
    images, rows = len(pool.images), pool.header.batch_size
    complete = bool((pool.index.rows == rows).all())
    return max(1, images // rows) if complete else -(-images // rows)


def _rows_per_process(settings: TrainSettings, pool: PoolReader, world: int) -> int | None:
    """Return the rows that each process takes of a step; None for whole label batches of one process."""
    if world == 1:
        return settings.batch_size
    rows = settings.batch_size or pool.header.batch_size
    if rows % world:
        raise InvalidArgumentError(
            "the batch size cannot be shared equally", expected=f"a multiple of {world} processes", got=rows
        )
    return rows // world


def image_class_names(images: ImageTable, classes: int) -> list[str] | None:
    """Return the names of the class folders, or None where they do not stand for the labels' classes."""
    names: dict[int, str] = {}
    for path, label in zip(images.paths, images.classes.tolist(), strict=True):
        folder, slash, _ = path.partition("/")
        if not slash or names.setdefault(label, folder) != folder:
            return None
    return [names[label] for label in range(classes)] if len(names) == classes else None


def _check(pool: PoolReader, settings: TrainSettings, validation: ValidationSet | None) -> None:
    if validation is not None:
        validation.require_classes(pool.classes, image_class_names(pool.images, pool.classes))
    if settings.loss == "mse+gt" and int(pool.images.classes.max()) + 1 != pool.classes:
        raise InvalidArgumentError(
            "this loss needs the true classes, and the image folder has not as many as the labels",
            where=pool.location,
            expected=f"{pool.classes} class folders",
            got=int(pool.images.classes.max()) + 1,
            hint="train with the kl loss",
        )


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
