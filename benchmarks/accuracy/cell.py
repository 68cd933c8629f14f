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
from typing import Any

from benchmarks.accuracy.cells import BASELINES, SHIPPED, Cell, Scale
from benchmarks.accuracy.others import baseline, write_baseline
from benchmarks.accuracy.shipped import shipped
from benchmarks.accuracy.stopwatch import Stopwatch
from benchmarks.accuracy.work import Workshop, image_bytes
from lpld_core.train.evaluate import ValidationSet
from lpld_core.train.settings import EXPERIMENT_PRESETS, SamplingPolicy, TrainSettings
from lpld_core.train.student import train_student
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.plan import apply_plan, plan_budget
from lpld_labels.transforms.prune import kept_count, plan_prune, ratio_that_keeps, write_pruned
from lpld_labels.transforms.settings import DEFAULT_FIDELITY, PlanSettings, PruneSettings


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The accuracy of a student, the bytes of its labels and of its images, and its steps.

    seconds: processor time of its training. preparing: processor time before that, for its pool and for
    missing teachers, images and labels.
    """

    top1: float
    top5: float
    bytes: int
    rows: int
    batches: int
    steps: int
    seconds: float
    preparing: float
    image_bytes: int


def train_cell(workshop: Workshop, cell: Cell) -> CellResult:
    """Make what is missing, then prune, train and evaluate one student.

    The same call resumes an interrupted training. Call `forget_student` once the result is saved.
    """
    scale = workshop.scale
    begun = time.process_time()
    images = workshop.images(cell)
    folder = _folder(workshop, cell)
    validation = ValidationSet(workshop.validation, size=(scale.size, scale.size))
    with pool_of(workshop, cell) as (pool, size):
        preparing = time.process_time() - begun
        watch = Stopwatch(folder.with_suffix(".seconds"))
        # overwrite: a codec that is fitted again may differ by a bit, which makes another pool. The folder
        # belongs to this cell alone, so its old student can be replaced.
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
        rows, batches = pool.manifest.counts.rows, pool.manifest.counts.batches
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
        image_bytes=image_bytes(images),
    )


def forget_student(workshop: Workshop, cell: Cell) -> None:
    """Delete a student and its checkpoints."""
    folder = _folder(workshop, cell)
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(".seconds").unlink(missing_ok=True)


@contextmanager
def pool_of(workshop: Workshop, cell: Cell) -> Iterator[tuple[PoolReader, int]]:
    """Open the cell's pool, with the bytes of its labels, and delete it afterwards.

    A cell of all labels in f16 or of a shipped teacher shares the full pool.
    """
    with PoolReader(workshop.labels(cell)) as labels:
        if cell.codec in SHIPPED:
            yield labels, shipped(workshop.teacher(cell.teacher), cell.codec)[1]
            return
        if cell.ratio == 1 and cell.codec == "f16":
            yield labels, pool_bytes(labels.manifest)
            return
        # In the work directory, so that the next run replaces what a killed process left.
        folder = _folder(workshop, cell).with_suffix(".pool")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            made = Path(labels.location)
            for number, settings in enumerate(prunings(workshop.scale, cell, len(labels.index))):
                with PoolReader(made) as before:
                    made = folder / f"f16-{number}"
                    write_pruned(plan_prune(before, settings), made)
            size = None
            if cell.codec != "f16":
                with PoolReader(made) as plain:
                    budget = pool_bytes(plain.manifest)
                    if cell.codec.startswith(BASELINES):
                        found = baseline(cell.codec, labels, TrainSettings().temperature, cell.seed)
                        size = write_baseline(labels, plain.manifest, found, folder, cell.seed)
                        if size > budget:
                            raise TooFewBytesError(f"{cell.codec} needs {size} bytes, f16 has {budget}")
                    else:
                        fill_budget(labels, folder / "pool", cell, budget)
                made = folder / "pool"
            with PoolReader(made) as pool:
                yield pool, pool_bytes(pool.manifest) if size is None else size
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


def prunings(scale: Scale, cell: Cell, batches: int) -> list[PruneSettings]:
    """Return the successive prunings that make a cell's pool in f16. batches: of the pool of all labels."""
    last = prune_settings(scale, cell)
    if not cell.calibrated:
        return [last]
    easier, middle = (
        round((1 - dropped) * batches) for dropped in (cell.drop_hard, cell.drop_hard + cell.drop_easy)
    )
    return [
        PruneSettings(ratio=ratio_that_keeps(easier, batches), by="confidence", prefer="easy"),
        PruneSettings(ratio=ratio_that_keeps(middle, easier), by="confidence", prefer="hard"),
        replace(last, ratio=ratio_that_keeps(kept_count(batches, cell.ratio), middle)),
    ]


def prune_settings(scale: Scale, cell: Cell) -> PruneSettings:
    """Return how all labels in f16 are pruned for a cell.

    Epochs are never cut, so that students that replay them take as many steps as others. Their number is
    rounded up, so that batches drawn from all epochs are never compared with a smaller pool of whole epochs.
    """
    ratio = cell.ratio
    if cell.pool == "epochs":
        epochs = cell.epochs or scale.epochs
        # The next smaller float, so that the number of batches is not rounded down.
        ratio = max(1.0, math.nextafter(epochs / math.ceil(epochs / cell.ratio), 1.0))
    return PruneSettings(
        ratio=ratio,
        level="batch" if cell.pool == "batches" else "epoch",
        by=cell.by,  # type: ignore[arg-type]
        prefer=cell.prefer,  # type: ignore[arg-type]
        seed=cell.seed,
    )


def train_settings(workshop: Workshop, cell: Cell) -> TrainSettings:
    """Return how a cell's student is trained: as by the paper's programs, with the cell's settings."""
    scale = workshop.scale
    epochs = cell.epochs or scale.epochs
    others: dict[str, Any] = {
        name: value
        for name in ("temperature_schedule", "student_temperature")
        if (value := getattr(cell, name)) is not None
    }
    if cell.phases is not None:
        others |= {
            "phases": cell.phases,
            "hard_smoothing": EXPERIMENT_PRESETS["hald"].train.hard_smoothing,
        }
    return TrainSettings(
        student=cell.student or scale.network,
        seed=cell.seed,
        epochs=epochs,
        sampling=_policy(cell),
        loss="kl",
        learning_rate=scale.student_rate,
        amp="bf16" if scale.amp else "off",
        evaluate_every=epochs,
        **others,
    )


def _policy(cell: Cell) -> SamplingPolicy:
    """Return the sampling policy. Without ILP, whole epochs are replayed: in turn at 1x, else at random."""
    if cell.policy is not None:
        return cell.policy
    if cell.pool == "batches":
        return "batches"
    return "epoch-by-epoch" if cell.ratio == 1 else "epochs"


def _folder(workshop: Workshop, cell: Cell) -> Path:
    """Return the folder of the student's checkpoints, the same in every run."""
    settings = json.dumps(workshop.scale.as_json()) + cell.key
    return workshop.root / "cells" / hashlib.sha256(settings.encode()).hexdigest()[:16]
