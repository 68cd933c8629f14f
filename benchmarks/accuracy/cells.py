"""The experiment: its scale, and its cells. A cell is one student."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from lpld_core.settings import Mix
from lpld_core.train.settings import SamplingPolicy


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large an experiment is. Every field decides results, so the results file stores all of them.

    network: of teacher and student. second_network: unused; recorded scales have it.
    iterations, learning_rate, alpha, roll: of recovery. epochs: label epochs, which are also the student's
    training epochs; large_epochs: those at large_ipc. batch_size: of labels and of
    students. mix: how views are mixed. student_rate: learning rate of students. amp: train teachers and
    students with autocast to bfloat16, which saves a third of the time on processors that support it. Labels
    and recovery are always float32.
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
    mix: Mix
    student_rate: float
    large_epochs: int
    amp: bool

    def as_json(self) -> dict[str, Any]:
        """Return the scale as JSON values."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found

    @staticmethod
    def parse(fields: Mapping[str, Any]) -> Scale:
        """Return the scale of JSON values."""
        return Scale(**{**fields, "other_students": tuple(fields["other_students"])})


TINY100 = Scale(
    dataset="tiny100",
    size=32,
    network="small-resnet10:width=32,stem_stride=2",
    second_network="small-resnet18:width=16,stem_stride=2",
    other_students=("small-resnet18:width=16,stem_stride=2",),
    teacher_epochs=30,
    iterations=300,
    learning_rate=0.1,
    alpha=0.05,
    roll=4,
    ipc=10,
    large_ipc=50,
    epochs=300,
    large_epochs=100,
    batch_size=100,
    mix="none",
    student_rate=0.002,
    amp=True,
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
    epochs=12,
    large_epochs=4,
    batch_size=20,
    mix="none",
    student_rate=0.002,
    amp=True,
)


SHIPPED = ("teacher-f16", "teacher-int8")
"""Values of `Cell.codec`: see shipped.py."""
BASELINES = ("pq:", "sampled:")
"""Beginnings of `Cell.codec`: see others.py."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One student.

    method: of the images: lpld, lpld-global (class batches with global statistics), sre2l, cda, rded, real.
    ratio: of pruning. pool: "batches" (ILP: batches are pruned and drawn) or "epochs" (whole epochs are).
    by, prefer: as in `PruneSettings`. drop_easy, drop_hard: shares of the batches, by the teacher's
    confidence, that calibration leaves out before pruning.
    codec: f16, klt, intN or topk:K; a lossy one keeps as many batches as fit into the bytes of f16 at
    `ratio`. Also baselines: pq:M, sampled:K (others.py), teacher-f16, teacher-int8 (shipped.py).
    fidelity: of klt; None for the default. labels, loss: always the defaults; recorded cells have
    them. student: None for the scale's network. policy: of sampling; None for the one that fits `pool`.
    teacher: trained with label smoothing ("smoothed") or without ("plain").
    iterations, epochs, mix: None for the scale's.
    temperature_schedule, student_temperature: as `train` spells them; None for a constant temperature.
    phases: as `train` spells them, with the smoothing of preset hald; None for soft labels throughout.
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
    policy: SamplingPolicy | None = None
    fidelity: float | None = None
    teacher: str = "smoothed"
    iterations: int | None = None
    epochs: int | None = None
    mix: Mix | None = None
    temperature_schedule: str | None = None
    student_temperature: str | None = None
    phases: str | None = None

    @property
    def key(self) -> str:
        """Return the settings as one line, the cell's name in the results."""
        settings = asdict(self)
        if self.phases is None:
            del settings["phases"]  # As before there were phases, so that unfinished students resume.
        return json.dumps(settings, sort_keys=True)

    @property
    def row(self) -> Cell:
        """Return what all seeds of this cell share."""
        return replace(self, seed=0)

    def __str__(self) -> str:
        parts = [self.method, f"{self.ratio:g}x", self.pool]
        parts += [f"ipc {self.ipc}"] if self.ipc else []
        parts += [f"{self.by} {self.prefer}"] if self.prefer else []
        parts += [f"easy -{self.drop_easy:.0%} hard -{self.drop_hard:.0%}"] if self.calibrated else []
        parts += [self.codec_name] if self.codec != "f16" else []
        parts += [self.student] if self.student else []
        parts += [self.policy] if self.policy else []
        parts += [self.mix] if self.mix else []
        parts += [f"schedule {self.temperature_schedule}"] if self.temperature_schedule else []
        parts += [f"student's T {self.student_temperature}"] if self.student_temperature else []
        parts += [f"phases {self.phases}"] if self.phases else []
        parts += ["plain teacher"] if self.teacher == "plain" else []
        return f"{', '.join(parts)}; seed {self.seed}"

    @property
    def codec_name(self) -> str:
        """The codec with its setting."""
        return self.codec if self.fidelity is None else f"{self.codec} {self.fidelity:g}"

    @property
    def calibrated(self) -> bool:
        return self.drop_easy != 0 or self.drop_hard != 0


@dataclass(frozen=True, kw_only=True)
class Record:
    """A finished cell. preparing: seconds spent on missing teachers, images and labels.

    image_bytes: of the image files; 0 in older records.
    """

    cell: Cell
    top1: float
    top5: float
    bytes: int
    rows: int
    steps: int
    seconds: float
    preparing: float = 0.0
    batches: int = 0
    commit: str = ""
    image_bytes: int = 0
