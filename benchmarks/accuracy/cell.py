"""One cell of the accuracy benchmark: prune its pool, train its student, measure."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.accuracy.cells import Cell, Scale
from benchmarks.accuracy.stopwatch import Stopwatch
from benchmarks.accuracy.temperatures import with_temperatures
from benchmarks.accuracy.work import Workshop
from lpld_core.train.evaluate import ValidationSet
from lpld_core.train.settings import SamplingPolicy, TrainSettings
from lpld_core.train.student import train_student
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.plan import apply_plan, plan_budget
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.settings import DEFAULT_FIDELITY, PlanSettings, PruneSettings


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What came of a student: shares of correct answers, its pool's size, its steps.

    seconds: of processor time for its training. preparing: the same until its pool was there, with what was
    missing of teachers, images and labels.
    """

    top1: float
    top5: float
    bytes: int
    rows: int
    batches: int
    steps: int
    seconds: float
    preparing: float


def train_cell(workshop: Workshop, cell: Cell) -> CellResult:
    """Make what is missing, then prune, train and evaluate one student.

    Call `forget_student` when what came of it is safe; until then the same call finds the student as it is.
    """
    scale = workshop.scale
    begun = time.process_time()
    images = workshop.images(cell)
    folder = _folder(workshop, cell)
    validation = ValidationSet(workshop.validation, size=(scale.size, scale.size))
    with pool_of(workshop, cell) as pool:
        preparing = time.process_time() - begun
        watch = Stopwatch(folder.with_suffix(".seconds"))
        # A codec that is fitted again may come out otherwise by a bit. The folder is this cell's alone, so a
        # student of the other pool may go.
        found = train_student(
            pool,
            images,
            folder,
            train_settings(workshop, cell),
            validation=validation,
            progress=watch,
            overwrite=True,
        )
        seconds = watch.stop()
        size, rows = pool_bytes(pool.manifest), pool.manifest.counts.rows
        batches = pool.manifest.counts.batches
    if found.accuracy is None:
        raise RuntimeError("a validation folder was given and no accuracy came back")
    return CellResult(
        top1=found.accuracy.top1,
        top5=found.accuracy.top5,
        bytes=size,
        rows=rows,
        batches=batches,
        steps=found.steps,
        seconds=round(seconds, 1),
        preparing=round(preparing, 1),
    )


def forget_student(workshop: Workshop, cell: Cell) -> None:
    """Delete a student and its checkpoints."""
    folder = _folder(workshop, cell)
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(".seconds").unlink(missing_ok=True)


@contextmanager
def pool_of(workshop: Workshop, cell: Cell) -> Iterator[PoolReader]:
    """Lend the cell's pool; it is deleted afterwards. All labels in f16 are lent as they are."""
    with PoolReader(workshop.labels(cell)) as labels:
        if cell.ratio == 1 and cell.codec == "f16":
            yield labels
            return
        # In the work directory, so that what a stopped process leaves is found and replaced.
        folder = _folder(workshop, cell).with_suffix(".pool")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            made = folder / "f16"
            prune_pool(labels, made, prune_settings(workshop.scale, cell))
            if cell.codec != "f16":
                with PoolReader(made) as plain:
                    fill_budget(labels, folder / "pool", cell, pool_bytes(plain.manifest))
                made = folder / "pool"
            with PoolReader(made) as pool:
                yield pool
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class TooFewBytesError(RuntimeError):
    """Not one batch and the codec's tables fit into the bytes of f16 at the cell's ratio."""


def fill_budget(labels: PoolReader, out: Path, cell: Cell, budget: int) -> None:
    """Write as many batches in the cell's codec as fit into the budget, like `lpld-labels plan --apply`."""
    fidelity = cell.fidelity or DEFAULT_FIDELITY
    problem = f"{cell.codec_name} does not fit into the {budget} bytes of f16 at {cell.ratio:g}x"
    try:
        settings = PlanSettings(budget=budget, codecs=(cell.codec,), min_fidelity=fidelity)
        plan = plan_budget(labels, settings)
    except InvalidArgumentError as error:
        raise TooFewBytesError(f"{problem}: {error.problem}") from None
    wanted = fidelity if cell.codec == "klt" else None
    rows = [row for row in plan.rows if row.asked == wanted]
    if not rows:
        raise TooFewBytesError(problem)
    try:
        row = rows[0]
        if row.pruned is not None:
            seeded = replace(row.pruned, seed=cell.seed).resized(row.batches)
            row = replace(row, pruned=seeded)
        apply_plan(labels, out, plan, row=row)
    except InvalidArgumentError as error:
        raise TooFewBytesError(f"{problem}: {error.problem}") from None


def prune_settings(scale: Scale, cell: Cell) -> PruneSettings:
    """Return how all labels in f16 are pruned for a cell.

    Epochs stay whole: students that replay them take as many steps as others only if none is cut short.
    Where the ratio gives no whole number of them, they are rounded up, so that drawing from all batches is
    never compared with fewer labels than it has itself.
    """
    if cell.calibrated:
        raise TooFewBytesError("pools without their easiest and hardest batches are no longer made")
    ratio = cell.ratio
    if cell.pool == "epochs":
        epochs = cell.epochs or scale.epochs
        # A hair less, so that the count of batches is not rounded down below whole epochs.
        ratio = max(1.0, math.nextafter(epochs / math.ceil(epochs / cell.ratio), 1.0))
    return PruneSettings(
        ratio=ratio,
        level="batch" if cell.pool == "batches" else "epoch",
        by=cell.by,  # type: ignore[arg-type]
        prefer=cell.prefer,  # type: ignore[arg-type]
        seed=cell.seed,
    )


def train_settings(workshop: Workshop, cell: Cell) -> TrainSettings:
    """Return how a cell's student is trained: as the paper's programs do, but for what the cell says."""
    scale = workshop.scale
    epochs = cell.epochs or scale.epochs
    settings = TrainSettings(
        student=cell.student or scale.network,
        seed=cell.seed,
        epochs=epochs,
        sampling=_policy(cell),
        loss="mse+gt" if cell.loss == "mse+gt" else "kl",
        learning_rate=scale.student_rate,
        amp="bf16" if scale.amp else "off",
        evaluate_every=epochs,
    )
    return with_temperatures(settings, cell)


def _policy(cell: Cell) -> SamplingPolicy:
    """Without ILP, stored epochs are replayed: all of them in turn at 1x, random ones of those left after."""
    if cell.policy is not None:
        return cell.policy
    if cell.pool == "batches":
        return "batches"
    return "epoch-by-epoch" if cell.ratio == 1 else "epochs"


def _folder(workshop: Workshop, cell: Cell) -> Path:
    """Return where the student's checkpoints are, the same after a restart."""
    settings = json.dumps(workshop.scale.as_json()) + cell.key
    return workshop.root / "cells" / hashlib.sha256(settings.encode()).hexdigest()[:16]
