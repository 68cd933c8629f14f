"""What the accuracy benchmark trains: a cell is one student, a group of cells one of the paper's tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lpld_labels.rewriting.metrics import METRICS
from lpld_labels.rewriting.selection import PREFERENCES

POOLS = ("epochs", "batches")
"""Without and with the improved label pool (ILP)."""
CALIBRATION = ((0.0, 0.9), (0.0, 0.5), (0.1, 0.3), (0.3, 0.05), (0.9, 0.0))
"""Shares of (easy, hard) batches that the paper leaves out before it prunes."""
DEFAULT_SEEDS = 3


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large an experiment is. Every field decides results, so all are stored with each of them.

    network: of teacher and student. second_network: the other teacher of the ensemble.
    iterations, learning_rate, alpha, roll: of recovery. epochs: views of every image, and passes over the
    images that a student's step budget is. batch_size: of labels and of students.
    """

    dataset: str
    size: int
    network: str
    second_network: str
    other_students: tuple[str, ...]
    teacher_epochs: int
    iterations: int
    learning_rate: float
    alpha: float
    roll: int
    ipc: int
    large_ipc: int
    epochs: int
    batch_size: int

    def as_json(self) -> dict[str, Any]:
        """Return the scale as JSON values."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found


TINY20 = Scale(
    dataset="tiny20",
    size=32,
    network="small-resnet10:width=32,stem_stride=2",
    second_network="small-resnet18:width=16,stem_stride=2",
    other_students=("small-resnet10:width=16,stem_stride=2", "small-resnet18:width=32,stem_stride=2"),
    teacher_epochs=30,
    iterations=300,
    learning_rate=0.1,
    alpha=0.05,
    roll=4,
    ipc=10,
    large_ipc=50,
    epochs=80,
    batch_size=50,
)
DIGITS = Scale(
    dataset="digits",
    size=32,
    network="small-resnet10:width=8,stem_stride=2",
    second_network="small-resnet10:width=4,stem_stride=2",
    other_students=("small-resnet10:width=4,stem_stride=2",),
    teacher_epochs=4,
    iterations=15,
    learning_rate=0.1,
    alpha=0.05,
    roll=4,
    ipc=4,
    large_ipc=8,
    epochs=20,
    batch_size=20,
)
SCALES: Mapping[str, Scale] = {"tiny20": TINY20, "digits": DIGITS}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One student.

    method: whose images: lpld, lpld-global (class batches with global statistics), sre2l, cda, rded.
    ratio: of pruning. pool: "batches" (ILP: batches are pruned and drawn) or "epochs" (whole epochs are).
    by, prefer, drop_easy, drop_hard: as in `PruneSettings`.
    codec: f16, klt or topk:K; a lossy one keeps as many batches as fit into the bytes of f16 at `ratio`.
    labels: by a "single" teacher or an "ensemble". student: None for the scale's network.
    """

    method: str
    ratio: float
    seed: int = 0
    pool: str = "batches"
    ipc: int | None = None
    by: str = "random"
    prefer: str | None = None
    drop_easy: float = 0.0
    drop_hard: float = 0.0
    codec: str = "f16"
    labels: str = "single"
    loss: str = "kl"
    student: str | None = None

    @property
    def key(self) -> str:
        """Return the settings as one line, the cell's name in the results."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def row(self) -> Cell:
        """Return what all seeds of this cell share."""
        return replace(self, seed=0)

    def __str__(self) -> str:
        parts = [self.method, f"{self.ratio:g}x", self.pool]
        parts += [f"ipc {self.ipc}"] if self.ipc else []
        parts += [f"{self.by} {self.prefer}"] if self.prefer else []
        parts += [f"easy -{self.drop_easy:.0%} hard -{self.drop_hard:.0%}"] if self.calibrated else []
        parts += [self.codec] if self.codec != "f16" else []
        parts += [self.labels, self.loss] if self.labels != "single" or self.loss != "kl" else []
        parts += [self.student] if self.student else []
        return f"{', '.join(parts)}; seed {self.seed}"

    @property
    def calibrated(self) -> bool:
        return self.drop_easy != 0 or self.drop_hard != 0


def main_cells(scale: Scale) -> Iterator[Cell]:
    """Yield the main table: class-wise against cross-class, with and without ILP."""
    del scale
    for ratio in (10, 20, 40, 1):
        for pool in reversed(POOLS):
            for method in ("lpld", "sre2l"):
                yield Cell(method=method, ratio=ratio, pool=pool)


def metric_cells(scale: Scale) -> Iterator[Cell]:
    """Yield the five metrics x three preferences at 40x; random is in the main table."""
    del scale
    for prefer in PREFERENCES:
        for metric in METRICS:
            yield Cell(method="lpld", ratio=40, by=metric, prefer=prefer)


def calibration_cells(scale: Scale) -> Iterator[Cell]:
    """Yield random pruning of calibrated pools."""
    del scale
    for ratio in (20, 30, 50, 100):
        for easy, hard in (*CALIBRATION, (0.0, 0.0)):
            yield Cell(method="lpld", ratio=ratio, drop_easy=easy, drop_hard=hard)


def ablation_cells(scale: Scale) -> Iterator[Cell]:
    """Yield the ablation's five rows: none, +C, +C+ILP, +C+CS, +C+CS+ILP."""
    del scale
    rows = (
        ("lpld-global", "epochs"),
        ("lpld-global", "batches"),
        ("sre2l", "epochs"),
        ("lpld", "epochs"),
        ("lpld", "batches"),
    )
    for ratio in (10, 20, 40, 1, 30, 50, 100):
        for method, pool in rows:
            yield Cell(method=method, ratio=ratio, pool=pool)


def method_cells(scale: Scale) -> Iterator[Cell]:
    """Yield other ways to make images: cda, and rded with and without ILP."""
    del scale
    for ratio in (1, 10, 20, 40, 30):
        for method, pool in (("rded", "batches"), ("cda", "batches"), ("rded", "epochs"), ("cda", "epochs")):
            yield Cell(method=method, ratio=ratio, pool=pool)


def codec_cells(scale: Scale) -> Iterator[Cell]:
    """Yield codecs at equal bytes: what pruned f16 labels take, filled with more but coarser ones."""
    del scale
    for ratio in (40, 20, 10):
        for codec in ("klt", "topk:3", "topk:5"):
            yield Cell(method="lpld", ratio=ratio, codec=codec)


def ensemble_cells(scale: Scale) -> Iterator[Cell]:
    """Yield the paper's Ours+: labels by two teachers, loss MSE + 0.1 x ground truth."""
    del scale
    for ratio in (10, 40, 1, 20, 30):
        yield Cell(method="lpld", ratio=ratio, labels="ensemble", loss="mse+gt")


def architecture_cells(scale: Scale) -> Iterator[Cell]:
    """Yield students that are not the teacher's network."""
    for ratio in (10, 1, 30):
        for student in scale.other_students:
            yield Cell(method="lpld", ratio=ratio, student=student)


def large_cells(scale: Scale) -> Iterator[Cell]:
    """Yield more images per class: does "10x costs little" return? rded needs no optimisation."""
    for method in ("rded", "lpld"):
        for ratio in (1, 10):
            yield Cell(method=method, ratio=ratio, ipc=scale.large_ipc)


GROUPS: Mapping[str, Callable[[Scale], Iterator[Cell]]] = {
    "main": main_cells,
    "metrics": metric_cells,
    "codecs": codec_cells,
    "methods": method_cells,
    "ablation": ablation_cells,
    "large": large_cells,
    "ensemble": ensemble_cells,
    "architectures": architecture_cells,
    "calibration": calibration_cells,
}
"""Tables by name, most informative first."""


def quick_cells(scale: Scale) -> list[Cell]:
    """Return one cell of every kind, for a run that shows that all of them work."""
    return [
        Cell(method="lpld", ratio=1, pool="epochs"),
        Cell(method="lpld", ratio=10),
        Cell(method="sre2l", ratio=10),
        Cell(method="rded", ratio=10, pool="epochs", student=scale.other_students[0]),
        Cell(method="lpld", ratio=10, by="confidence", prefer="easy"),
        Cell(method="lpld", ratio=10, drop_easy=0.1, drop_hard=0.3),
        Cell(method="lpld", ratio=4, codec="klt"),
        Cell(method="lpld", ratio=10, labels="ensemble", loss="mse+gt"),
    ]


def planned(scale: Scale, groups: Sequence[str], *, seeds: int = DEFAULT_SEEDS) -> list[Cell]:
    """Return the cells of some groups in the order to train them: all seeds of the main table, one of others.

    Tables share cells; each is trained once.
    """
    found: dict[str, Cell] = {}
    for name in groups:
        for seed in range(seeds if name == "main" else 1):
            for cell in GROUPS[name](scale):
                chosen = replace(cell, seed=seed)
                found.setdefault(chosen.key, chosen)
    return list(found.values())
