"""Train a student from a pool until the step budget is used; an interrupted run resumes exactly.

The loss compares the student's output with the teacher's label, and optionally with the true class.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # its usual name

from lpld_core.networks.models import network_source, seeded
from lpld_core.networks.weights import Tensors, load_into
from lpld_core.train.evaluate import Accuracy, ValidationSet
from lpld_core.train.ranks import ALONE, Ranks, lost_processes_reported
from lpld_core.train.run_directory import TrainingRun, describe_network, require_run_directory
from lpld_core.train.settings import TrainSettings, labels_in, temperature_in
from lpld_core.train.trainer import EpochProgress, LossOf, Trainer, TrainingBatch
from lpld_labels.codecs.label_semantics import as_logits, find_normalisation, softened
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.images import ImageTable
from lpld_labels.loader import PoolLoader, pool_loader
from lpld_labels.loader.pool_loader import require_true_classes
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.images import check_images, find_images
from lpld_labels.results import Result

Watch = Callable[[EpochProgress, Accuracy | None, int], None]
"""Called with the epoch's progress, the last accuracy, and the number of epochs before that accuracy."""

SMALL_VIEWS_BELOW = 128


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainResult(Result):
    """Result of training. weights: the student's file. accuracy: None without a validation folder."""

    weights: Path
    accuracy: Accuracy | None
    steps: int
    resumed_from: int

    def as_json(self) -> dict[str, Any]:
        return {
            "weights": str(self.weights),
            "steps": self.steps,
            "resumed_from_epoch": self.resumed_from,
            "top1": self.accuracy and self.accuracy.top1,
            "top5": self.accuracy and self.accuracy.top5,
        }


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
    """Train for ``epochs * epoch_steps(pool)`` steps, whatever the number of label batches.

    images_dir: the labelled image folder; None for a pool that carries its images.
    out: the run's directory (run_directory.py). watch: called after each step, before `progress`.
    overwrite: delete an earlier run of other settings.
    ranks: result of `joined_ranks`. All processes call this function; only the first writes to `out`. A run
    may resume with a different number of processes.
    Raises ImageMismatchError before the first step if images have changed since they were labelled.
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
    trainer = Trainer(model, settings, ranks)
    loader = pool_loader(
        pool,
        images_dir,
        batch_size=_rows_per_process(settings, pool, ranks.world),
        sampling=settings.sampling,
        seed=settings.seed,
        batches_per_epoch=epoch_steps(pool),
        labels="soft" if settings.phases is None else partial(labels_in, settings),
        rank=ranks.rank,
        world_size=ranks.world,
        normalise=False,
        device=trainer.device,
        replay=settings.replay,
        num_workers=settings.workers,
        cache_directory=settings.image_cache,
    )
    training = _Training(trainer, loss, run, loader, validation, progress, watch)
    with lost_processes_reported(), run.at_work() if ranks.first else contextlib.nullcontext():
        finished = ranks.broadcast(run.finished() if ranks.first else None)
        if finished is None:
            training.resume()
        else:
            load_into(trainer.result, finished)
            training.epochs_done, training.steps = settings.epochs, int(finished.about["steps"])
        start = training.epochs_done
        training.train()
        if finished is None and ranks.first:
            size = (header.augmentation.output_height, header.augmentation.output_width)
            about = describe_network(settings.student, pool.classes, size, settings)
            about |= {"pool": pool.manifest.content_digest, "steps": training.steps}
            run.finish(trainer.result.state_dict(), about)
    return TrainResult(
        weights=run.result, accuracy=training.accuracy, steps=training.steps, resumed_from=start
    )


@dataclass
class _Training:
    trainer: Trainer
    loss: StudentLoss
    run: TrainingRun
    loader: PoolLoader
    validation: ValidationSet | None
    progress: Progress | None
    watch: Watch | None
    epochs_done: int = field(default=0, init=False)
    steps: int = field(default=0, init=False)
    begin: EpochProgress | None = field(default=None, init=False)
    accuracy: Accuracy | None = field(default=None, init=False)
    evaluated_after: int = field(default=0, init=False)

    def resume(self) -> None:
        """Load the checkpoint. If there is none, save the first checkpoint."""
        ranks = self.trainer.ranks
        found = ranks.broadcast(self.run.resume() if ranks.first else None)
        if found is not None:
            self.trainer.load_state(found.state)
            self.loss.load_state(found.state)
            self.epochs_done, self.steps, self.begin = found.epochs_done, found.steps, found.within
        elif ranks.first:
            self._save(0)

    def train(self) -> None:
        settings = self.trainer.settings
        if self.epochs_done == settings.epochs:
            self.accuracy = self.trainer.accuracy(self.validation)
        for epoch in range(self.epochs_done, settings.epochs):
            last = epoch + 1 == settings.epochs
            self.loss.start_epoch(epoch)
            used = {
                "labels": self.loss.labels,
                "temperature": self.loss.temperature,
                "student_temperature": self.loss.student_temperature,
            }
            done = self._epoch(epoch)
            self.loss.end_epoch(self.trainer.ranks)
            evaluated = last or (epoch + 1) % settings.evaluate_every == 0
            measured = self.trainer.accuracy(self.validation) if evaluated else None
            if measured is not None:
                self.accuracy, self.evaluated_after = measured, epoch + 1
            self.steps += done.steps
            if not self.trainer.ranks.first:
                continue
            self.run.log(
                {
                    **used,
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
            # Do not save after the last step: checkpoints lack the batch that calibrates the temperature.
            if self.trainer.ranks.first and so_far.steps < steps and self.run.due():
                self._save(epoch, within=so_far)
            if self.watch is not None:
                self.watch(so_far, self.accuracy, self.evaluated_after)
            if self.progress is not None:
                self.progress(epoch * steps + so_far.steps, self.trainer.settings.epochs * steps)

        return self.trainer.run_epoch(epoch, self._batches(), steps=steps, begin=begin, after_step=after_step)

    def _batches(self) -> Iterator[TrainingBatch]:
        for batch in self.loader:
            yield TrainingBatch(batch.images, self.loss.of(batch.labels, batch.targets))


CALIBRATION_GRID = np.linspace(0.01, 1, 100)
"""Candidates for a calibrated student temperature."""
_STUDENT_TEMPERATURE = "student_temperature"


class StudentLoss:
    """The loss of a run, at the current epoch's temperatures of labels and student.

    label_kind: logits or probabilities. kept: number of classes per row that top-k labels store; None: all.
    """

    def __init__(self, settings: TrainSettings, *, label_kind: str, kept: int | None = None) -> None:
        if settings.loss != "kl" and label_kind != "logits":
            raise InvalidArgumentError("this loss requires logits", where=settings.loss, got=label_kind)
        self._settings, self._label_kind = settings, label_kind
        self._kept = kept if settings.tail == "none" else None
        self._calibrated = 1.0
        self._last: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.start_epoch(0)

    @property
    def student_temperature(self) -> float:
        wanted = self._settings.student_temperature
        if isinstance(wanted, str):
            return self.temperature if wanted == "teacher" else self._calibrated
        return wanted

    def start_epoch(self, epoch: int) -> None:
        self.temperature = temperature_in(self._settings, epoch)
        self.labels = labels_in(self._settings, epoch)

    def of(self, labels: torch.Tensor, classes: torch.Tensor) -> LossOf:
        """Return the loss of a batch as a function of the student's logits; keep the batch for `end_epoch`.

        labels: float32 [B, C]. classes: int64 [B], the true class of each view's own image.
        """
        if self.labels == "hard":
            return partial(self._cross_entropy, labels)
        if self._settings.loss != "kl":
            return lambda output, rows: mse_and_truth(self._settings, output, labels[rows], classes[rows])
        target = self.target(labels)
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        if len(labels) > 1:  # single rows are not trained on
            self._last = seen

        def kl_of(output: torch.Tensor, rows: slice) -> torch.Tensor:
            seen.append((output.detach(), target[rows]))
            loss = kl(output, target[rows], self.student_temperature)
            return loss * self.temperature**2 if self._settings.scale_by_t2 else loss

        return kl_of

    def _cross_entropy(self, labels: torch.Tensor, output: torch.Tensor, rows: slice) -> torch.Tensor:
        target, smoothing = labels[rows].to(output.dtype), self._settings.hard_smoothing
        return F.cross_entropy(output, target, label_smoothing=smoothing)

    def target(self, labels: torch.Tensor) -> torch.Tensor:
        kind, share = self._label_kind, self._settings.label_smoothing
        if self._kept is not None and self._kept < labels.shape[1]:
            labels, kind = largest_only(as_logits(labels, kind), self._kept), "logits"
        # Label smoothing s turns logits z into (1 - s) z + s / C; softmax ignores the constant s / C.
        return softened(labels, kind, self.temperature / (1 - share))

    def end_epoch(self, ranks: Ranks = ALONE) -> None:
        """Calibrate the student's temperature on the labels of the last batch, if the settings ask for it."""
        if self._settings.student_temperature == "calibrated":
            losses = torch.zeros(len(CALIBRATION_GRID), dtype=torch.float64)
            for output, target in self._last:
                each = [kl(output, target, temperature) for temperature in CALIBRATION_GRID.tolist()]
                losses += torch.stack(each).cpu().double() * len(output)
            losses = ranks.sum(losses)
            if bool(losses.any()):
                self._calibrated = float(CALIBRATION_GRID[int(losses.argmin())])
        self._last = []

    def state(self) -> Tensors:
        return {_STUDENT_TEMPERATURE: torch.tensor(self._calibrated, dtype=torch.float64)}

    def load_state(self, tensors: Tensors) -> None:
        """Resume from what `state` returned; other tensors are ignored."""
        self._calibrated = float(tensors[_STUDENT_TEMPERATURE])


def kl(output: torch.Tensor, target: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return KL(target || softmax(output / temperature)): sum over classes, mean over rows; 0 log 0 is 0."""
    logs = F.log_softmax(output / temperature, dim=1)
    return F.kl_div(logs, target.to(output.dtype), reduction="batchmean")  # older torch does not promote


def mse_and_truth(
    settings: TrainSettings, output: torch.Tensor, labels: torch.Tensor, classes: torch.Tensor
) -> torch.Tensor:
    """Return the mean squared error of logits plus gamma x cross-entropy with the true class (G-VBSM)."""
    hard = F.cross_entropy(output, classes, label_smoothing=settings.label_smoothing)
    return F.mse_loss(output, labels.to(output.dtype)) + settings.gamma * hard


def largest_only(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Return logits [B, C] with all but the `count` largest of each row set to minus infinity."""
    values, classes = logits.topk(count, dim=1)
    return torch.full_like(logits, -torch.inf).scatter_(1, classes, values)


def resolved(settings: TrainSettings, pool: PoolReader) -> TrainSettings:
    """Take student and normalisation from the pool if they are None; refuse an unknown normalisation."""
    mean, std = find_normalisation(pool.header, settings.mean, settings.std, where=pool.location)
    small = pool.header.augmentation.output_height < SMALL_VIEWS_BELOW
    student = settings.student or ("small-resnet18" if small else "resnet18")
    return replace(settings, student=student, mean=mean, std=std)


def epoch_steps(pool: PoolReader) -> int:
    """Return steps per epoch: images / batch size, rounded down if all batches are complete, else up."""
    images, rows = len(pool.images), pool.header.batch_size
    complete = bool((pool.index.rows == rows).all())
    return max(1, images // rows) if complete else -(-images // rows)


def _rows_per_process(settings: TrainSettings, pool: PoolReader, world: int) -> int | None:
    """Return the rows per step of each process; None: whole label batches (a single process only)."""
    if world == 1:
        return settings.batch_size
    rows = settings.batch_size or pool.header.batch_size
    if rows % world:
        problem = "the batch size cannot be divided equally among the processes"
        raise InvalidArgumentError(problem, expected=f"a multiple of {world}", got=rows)
    return rows // world


def _class_folders(images: ImageTable, classes: int) -> list[str] | None:
    """Return the names of the class folders in class order; None if folders and classes do not match."""
    names: dict[int, str] = {}
    for path, label in zip(images.paths, images.classes.tolist(), strict=True):
        folder, slash, _ = path.partition("/")
        if not slash or names.setdefault(label, folder) != folder:
            return None
    return [names[label] for label in range(classes)] if len(names) == classes else None


def _check(pool: PoolReader, settings: TrainSettings, validation: ValidationSet | None) -> None:
    if validation is not None:
        validation.require_classes(pool.classes, _class_folders(pool.images, pool.classes))
    if settings.loss == "mse+gt":
        require_true_classes(pool)
