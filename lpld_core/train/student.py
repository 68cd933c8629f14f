"""Training a student from a pool: batches drawn until the step budget is used, resumable exactly."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from lpld_core.networks.models import network_source, seeded
from lpld_core.networks.weights import load_into
from lpld_core.train.evaluate import Accuracy, ValidationSet
from lpld_core.train.losses import StudentLoss
from lpld_core.train.ranks import ALONE, Ranks, lost_processes_reported
from lpld_core.train.run_directory import TrainingRun, describe_network, require_run_directory
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
"""Called with the progress of the epoch and the last accuracy."""

SMALL_VIEWS_BELOW = 128


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The student's weights file and accuracy, which is None without a validation folder."""

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
    out: the run's directory (run_directory.py). watch: called after each step, before `progress`.
    overwrite: delete an earlier run of other settings.
    ranks: from `joined_ranks`, in processes that all call this. Only the first writes to `out`. A run may
    resume with another number of them.
    Raises ImageMismatchError before the first step if the images are not the labelled ones.
    """
    _check(pool, settings, validation)
    settings = resolved(settings, pool)
    header = pool.header
    loss = StudentLoss(settings, label_kind=header.label_kind, kept=pool.manifest.codec.parameters.get("k"))
    with seeded(settings.seed):
        model = network_source(settings.student or "").build(pool.classes).module
    check_images(find_images(pool, images_dir), progress=check_progress)
    require_run_directory(Path(out))
    decided = {**settings.deciding(), "pool": pool.manifest.content_digest}
    run = TrainingRun(Path(out), decided, overwrite=overwrite)
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
    trainer = Trainer(model, settings, ranks)
    training = _Training(trainer, loss, run, loader, validation, progress, watch)
    with lost_processes_reported(), run.at_work() if ranks.first else contextlib.nullcontext():
        finished = ranks.broadcast(run.finished() if ranks.first else None)
        if finished is not None:
            load_into(trainer.result, finished)
            start, steps, accuracy = (
                settings.epochs,
                int(finished.about["steps"]),
                trainer.accuracy(validation),
            )
        else:
            start = training.resume()
            accuracy = training.train(start)
            steps = training.steps
            if ranks.first:
                size = (header.augmentation.output_height, header.augmentation.output_width)
                about = describe_network(settings.student, pool.classes, size, settings)
                about |= {"pool": pool.manifest.content_digest, "steps": steps}
                run.finish(trainer.result.state_dict(), about)
    return TrainResult(weights=run.result, accuracy=accuracy, steps=steps, resumed_from=start)


@dataclass
class _Training:
    """The epochs of a run: train, evaluate, log, save."""

    trainer: Trainer
    loss: StudentLoss
    run: TrainingRun
    loader: PoolLoader
    validation: ValidationSet | None
    progress: Progress | None
    watch: Watch | None
    steps: int = field(default=0, init=False)
    begin: EpochProgress | None = field(default=None, init=False)
    accuracy: Accuracy | None = field(default=None, init=False)

    def resume(self) -> int:
        """Load the checkpoint if there is one; return how many epochs are done."""
        ranks = self.trainer.ranks
        found = ranks.broadcast(self.run.resume() if ranks.first else None)
        if found is None:
            if ranks.first:
                self._save(0)
            return 0
        self.trainer.load_state(found.state)
        self.loss.load_state(found.state)
        self.begin, self.steps = found.within, found.steps
        return found.epochs_done

    def train(self, start: int) -> Accuracy | None:
        """Train the remaining epochs; return the accuracy at the end."""
        settings = self.trainer.settings
        if start == settings.epochs:
            return self.trainer.accuracy(self.validation)
        for epoch in range(start, settings.epochs):
            last = epoch + 1 == settings.epochs
            self.loss.start_epoch(epoch)
            temperatures = {
                "temperature": self.loss.temperature,
                "student_temperature": self.loss.student_temperature,
            }
            done = self._epoch(epoch)
            self.loss.end_epoch(self.trainer.ranks)
            evaluated = last or (epoch + 1) % settings.evaluate_every == 0
            measured = self.trainer.accuracy(self.validation) if evaluated else None
            self.accuracy = measured or self.accuracy
            self.steps += done.steps
            if not self.trainer.ranks.first:
                continue
            self.run.log(
                {
                    **temperatures,
                    "epoch": epoch,
                    "loss": done.loss,
                    "learning_rate": done.learning_rate,
                    "steps": done.steps,
                    "images": done.images,
                    "seconds": done.seconds,
                    "top1": None if measured is None else measured.top1,
                    "top5": None if measured is None else measured.top5,
                }
            )
            self._save(epoch + 1)
        return self.accuracy

    def _save(self, epochs_done: int, within: EpochProgress | None = None) -> None:
        state = {**self.trainer.state(), **self.loss.state()}
        self.run.save(state, epochs_done=epochs_done, steps=self.steps, within=within)

    def _epoch(self, epoch: int) -> EpochProgress:
        begin, self.begin = self.begin, None
        self.loader.set_epoch(epoch)
        steps = len(self.loader)
        if begin is not None:
            self.loader.skip_to(epoch, begin.steps)

        def after_step(so_far: EpochProgress) -> None:
            # Not after the last step: checkpoints lack the batch that calibrates the temperature.
            if self.trainer.ranks.first and so_far.steps < steps and self.run.due():
                self._save(epoch, within=so_far)
            if self.watch is not None:
                self.watch(so_far, self.accuracy)
            if self.progress is not None:
                self.progress(epoch * steps + so_far.steps, self.trainer.settings.epochs * steps)

        return self.trainer.run_epoch(epoch, self._batches(), steps=steps, begin=begin, after_step=after_step)

    def _batches(self) -> Iterator[TrainingBatch]:
        device = self.trainer.device
        for batch in self.loader:
            loss_of = self.loss.of(batch.labels.to(device), batch.targets.to(device))
            yield TrainingBatch(batch.images, loss_of)


def resolved(settings: TrainSettings, pool: PoolReader) -> TrainSettings:
    """Fill in what the pool decides: student and normalisation; refuse an unknown normalisation."""
    mean, std = find_normalisation(pool.header, settings.mean, settings.std, where=pool.location)
    small = pool.header.augmentation.output_height < SMALL_VIEWS_BELOW
    student = settings.student or ("small-resnet18" if small else "resnet18")
    return replace(settings, student=student, mean=mean, std=std)


def epoch_steps(pool: PoolReader) -> int:
    """Return the steps of an epoch: images / batch size, rounded down for pools of complete batches only."""
    images, rows = len(pool.images), pool.header.batch_size
    complete = bool((pool.index.rows == rows).all())
    return max(1, images // rows) if complete else -(-images // rows)


def _rows_per_process(settings: TrainSettings, pool: PoolReader, world: int) -> int | None:
    """Return each process's rows of a step; None: one process that takes whole label batches."""
    if world == 1:
        return settings.batch_size
    rows = settings.batch_size or pool.header.batch_size
    if rows % world:
        raise InvalidArgumentError(
            "the batch size cannot be shared equally", expected=f"a multiple of {world} processes", got=rows
        )
    return rows // world


def _class_folders(images: ImageTable, classes: int) -> list[str] | None:
    """Return the names of the class folders, or None if folders are not the labels' classes."""
    names: dict[int, str] = {}
    for path, label in zip(images.paths, images.classes.tolist(), strict=True):
        folder, slash, _ = path.partition("/")
        if not slash or names.setdefault(label, folder) != folder:
            return None
    return [names[label] for label in range(classes)] if len(names) == classes else None


def _check(pool: PoolReader, settings: TrainSettings, validation: ValidationSet | None) -> None:
    if validation is not None:
        validation.require_classes(pool.classes, _class_folders(pool.images, pool.classes))
    image_classes = int(pool.images.classes.max()) + 1
    if settings.loss == "mse+gt" and image_classes != pool.classes:
        raise InvalidArgumentError(
            "this loss needs the true classes, and the image folder has not as many as the labels",
            where=pool.location,
            expected=f"{pool.classes} class folders",
            got=image_classes,
            hint="train with the kl loss",
        )
