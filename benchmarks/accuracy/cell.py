"""One cell of the accuracy benchmark: prune its pool, train its student, measure."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.accuracy.plan import Cell
from benchmarks.accuracy.work import Workshop
from lpld_core.training.evaluate import ValidationSet
from lpld_core.training.presets import TrainRecipe
from lpld_core.training.student import TrainJob, train_student
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.rewriting.prune import PruneSettings, prune_pool

EPOCHS_BETWEEN_CHECKPOINTS = 25


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What came of a student: accuracy shares, its pool's bytes and rows, steps, seconds of training."""

    top1: float
    top5: float
    bytes: int
    rows: int
    steps: int
    seconds: float


def train_cell(workshop: Workshop, cell: Cell) -> CellResult:
    """Make what is missing, then prune, train and evaluate one student."""
    scale = workshop.scale
    images = workshop.images(cell.method, cell.ipc)
    folder = _folder(workshop, cell)
    job = TrainJob(
        out=folder,
        recipe=TrainRecipe(epochs=scale.epochs, loss="mse+gt" if cell.loss == "mse+gt" else "kl"),
        student=cell.student or scale.network,
        seed=cell.seed,
        sampling=_sampling(cell),
        evaluate_every=scale.epochs,
        save_every=EPOCHS_BETWEEN_CHECKPOINTS,
    )
    validation = ValidationSet(workshop.validation, size=(scale.size, scale.size), workers=1)
    with pruned(workshop, cell) as pool:
        start = time.perf_counter()
        found = train_student(pool, images, job, validation=validation)
        seconds = time.perf_counter() - start
        size, rows = pool_bytes(pool.manifest), pool.manifest.counts.rows
    shutil.rmtree(folder)
    if found.accuracy is None:
        raise RuntimeError("a validation folder was given and no accuracy came back")
    return CellResult(
        top1=found.accuracy.top1,
        top5=found.accuracy.top5,
        bytes=size,
        rows=rows,
        steps=found.steps,
        seconds=round(seconds, 1),
    )


@contextmanager
def pruned(workshop: Workshop, cell: Cell) -> Iterator[PoolReader]:
    """Lend the cell's pool; it is deleted afterwards. At ratio 1 it is the pool of all labels."""
    if cell.ratio == 1:
        with PoolReader(workshop.encoded(cell)) as pool:
            yield pool
        return
    with tempfile.TemporaryDirectory(prefix="lpld-cell-") as name:
        with PoolReader(workshop.encoded(cell)) as source:
            prune_pool(source, Path(name) / "pool", _prune_settings(workshop, cell))
        with PoolReader(Path(name) / "pool") as pool:
            yield pool


def _prune_settings(workshop: Workshop, cell: Cell) -> PruneSettings:
    settings = PruneSettings(
        ratio=cell.ratio,
        level="batch" if cell.pool == "batches" else "epoch",
        by=cell.by,
        prefer=cell.prefer,
        drop_easy=cell.drop_easy,
        drop_hard=cell.drop_hard,
        seed=cell.seed,
    )
    if cell.codec == "f16":
        return settings
    with pruned(workshop, replace(cell, codec="f16")) as plain:
        return replace(settings, ratio=None, budget=pool_bytes(plain.manifest))


def _sampling(cell: Cell) -> str:
    """Without ILP, stored epochs are replayed: all of them in turn at 1x, random ones of those left after."""
    if cell.pool == "batches":
        return "batches"
    return "epoch-by-epoch" if cell.ratio == 1 else "epochs"


def _folder(workshop: Workshop, cell: Cell) -> Path:
    """Return where the student's checkpoints are, the same after a restart."""
    settings = json.dumps(workshop.scale.as_json()) + cell.key
    return workshop.root / "cells" / hashlib.sha256(settings.encode()).hexdigest()[:16]
