"""Training a student from a pool: batches drawn until the step budget is used, resumable exactly."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lpld_core.networks.models import network_source, seeded
from lpld_core.networks.weights import WeightsFile, load_into
from lpld_core.train.evaluate import Accuracy, ValidationSet
from lpld_core.train.losses import StudentLoss, TrueClasses
from lpld_core.train.ranks import ALONE, Ranks, gone_processes_told
from lpld_core.train.run_directory import TrainingRun, require_run_directory
from lpld_core.train.settings import TrainSettings
from lpld_core.train.trainer import EpochFacts, EpochSoFar, Trainer, TrainingBatch
from lpld_labels.codecs.label_semantics import find_normalisation
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.images import ImageTable
from lpld_labels.loader import PoolLoader, pool_loader
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.images import check_images, find_images

Watch = Callable[["RunFacts"], None]

SMALL_VIEWS_BELOW = 128


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """How a run is doing: mean loss of the epoch so far, learning rate, and the last accuracy measured."""

    loss: float
    learning_rate: float
    accuracy: Accuracy | None


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
    first one alone touches `out`. Without BatchNorm, or with it synced, their number makes no difference but
    rounding; a run may go on with another number.
    out: the run's directory (see run_directory.py). watch: called with how it is doing after each step,
    before `progress`. overwrite: let an earlier run of other settings go.
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
        sampling=settings.policy,
        seed=settings.seed,
        batches_per_epoch=epoch_steps(settings, pool),
        rank=ranks.rank,
        world_size=ranks.world,
        normalise=False,
        num_workers=settings.workers,
        cache_directory=settings.image_cache,
    )
    training = _Training(Trainer(model, settings, ranks), loss, run, loader, validation, progress, watch)
    with gone_processes_told(), run.at_work() if ranks.first else contextlib.nullcontext():
        finished = ranks.told_by_first(run.finished() if ranks.first else None)
        if finished is not None:
            return TrainResult(
                weights=run.result,
                accuracy=training.accuracy_of(finished),
                steps=int(finished.about["steps"]),
                resumed_from=settings.epochs,
            )
        start = training.resume()
        accuracy = training.run(start)
        steps = ranks.told_by_first(run.steps() if ranks.first else None) or 0
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
        self._begin: EpochSoFar | None = None
        self._accuracy: Accuracy | None = None

    def accuracy_of(self, finished: WeightsFile) -> Accuracy | None:
        """Return the accuracy of a student that was trained before."""
        load_into(self.trainer.result, finished)
        return self._evaluate()

    def resume(self) -> int:
        """Go on from the checkpoint, if there is one; return how many epochs are done."""
        ranks = self.trainer.ranks
        found = ranks.told_by_first(self._run.resume() if ranks.first else None)
        done = 0 if found is None else found.epochs_done
        if ranks.first:
            if found is None:
                self._save(0)
            self._run.keep_log_before(done)
        if found is not None:
            self.trainer.load_state(found.state)
            self._loss.load_state(found.state)
            self._begin = found.within
        return done

    def run(self, start: int) -> Accuracy | None:
        """Train the epochs that are left; return the accuracy at the end."""
        settings = self.trainer.settings
        if start == settings.epochs:
            return self._evaluate()
        for epoch in range(start, settings.epochs):
            last = epoch + 1 == settings.epochs
            self._loss.start_epoch(epoch)
            record = {
                "temperature": self._loss.temperature,
                "student_temperature": self._loss.student_temperature,
            }
            facts = self._epoch(epoch)
            self._loss.end_epoch(self.trainer.ranks)
            measured = self._evaluate() if last or (epoch + 1) % settings.evaluate_every == 0 else None
            self._accuracy = measured or self._accuracy
            if not self.trainer.ranks.first:
                continue
            self._run.log(_record(epoch, facts, measured) | record)
            if last or (epoch + 1) % settings.save_every == 0:
                self._save(epoch + 1)
        return self._accuracy

    def _save(self, epochs_done: int, within: EpochSoFar | None = None) -> None:
        state = {**self.trainer.state(), **self._loss.state()}
        self._run.save(epochs_done, state, within=within)

    def _evaluate(self) -> Accuracy | None:
        settings = self.trainer.settings
        if self._validation is None or settings.mean is None or settings.std is None:
            return None
        ranks = self.trainer.ranks
        return self._validation.accuracy(self.trainer.result, settings.mean, settings.std, ranks=ranks)

    def _epoch(self, epoch: int) -> EpochFacts:
        begin, self._begin = self._begin, None
        self._loader.set_epoch(epoch)
        steps = len(self._loader)
        if begin is not None:
            self._loader.skip_to(epoch, begin.steps)

        def after_step(so_far: EpochSoFar, rate: float) -> None:
            # Never after the last step: what it leaves for the calibration is not in a checkpoint.
            if self.trainer.ranks.first and so_far.steps < steps and self._run.due():
                self._save(epoch, within=so_far)
            if self._watch is not None:
                loss = so_far.loss_sum / max(so_far.images, 1)
                self._watch(RunFacts(loss=loss, learning_rate=rate, accuracy=self._accuracy))
            if self._progress is not None:
                self._progress(epoch * steps + so_far.steps, self.trainer.settings.epochs * steps)

        return self.trainer.run_epoch(epoch, self._batches(), steps=steps, begin=begin, after_step=after_step)

    def _batches(self) -> Iterator[TrainingBatch]:
        device = self.trainer.device
        for batch in self._loader:
            rows = len(batch.keys) * self.trainer.ranks.world
            truth = TrueClasses(own=batch.targets, partner=batch.partner_targets, weight=batch.mix_strength)
            # The loss remembers the last step, but not one of a single row, which is passed over.
            loss_of = self._loss.of(batch.labels.to(device), truth.to(device)) if rows > 1 else _no_loss
            yield TrainingBatch(batch.images, loss_of, rows)


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


def _no_loss(output: torch.Tensor, rows: slice) -> torch.Tensor:
    del rows
    return 0 * output.sum()


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
