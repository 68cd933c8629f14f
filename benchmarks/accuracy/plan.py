"""What is trained, in which order, and which decisions are made on the way.

    a            teachers with and without label smoothing, judged by students of real images; then how many
                 iterations of recovery are enough
    b            lpld and sre2l at 1x, 10x, 40x, drawn from all batches (ILP)
    c            codecs in the bytes of f16 at 40x; the best of each kind, chosen on seed 0, on seeds 1 to 3
    d            policies: shuffled, whole epochs; d2: temperatures that change, and the student's own
    metrics      pruning by some metrics
    settled      students of images of fewer iterations: whether more iterations still matter
    b2           20x and 30x, whole epochs of sre2l, metrics on other seeds
    c2           codecs in the bytes of f16 at 160x and 10x
    real         random real images in place of recovered ones, in f16 and klt, in the bytes of f16 at a ratio
    teacher      the teacher is shipped in place of labels, in float16 or int8, and labels every epoch anew
    phases       soft-hard-soft training and a temperature that falls, alone and together
    others       product quantisation and sampled classes in the bytes of klt; one seed
    f            another student
    e            real, cda and rded images; CutMix; many images per class
    ablation     class batches with global statistics, whole epochs (+C) and ILP (+C+ILP); one seed
    calibration  the easiest and hardest batches are left out before random pruning; one seed

The plan is a pure function of the decisions, and these are a pure function of the finished cells.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, product
from typing import Any

from benchmarks.accuracy.cells import DIGITS, SHIPPED, TINY100, Cell, Scale

GROUPS = (
    *("a", "b", "c", "d", "d2", "metrics", "settled", "b2", "c2"),
    *("real", "teacher", "phases", "others", "f", "e", "ablation", "calibration"),
)
TEACHERS = ("plain", "smoothed")
RECOVERED = ("lpld", "lpld-global", "sre2l", "cda")
BEST_METRICS = (("diff_signed", "easy"), ("correct", "easy"), ("confidence", "easy"))
"""The best on 20 classes, without those that need mixed views."""
TEMPERATURES: tuple[dict[str, str], ...] = (
    {"temperature_schedule": "step", "student_temperature": "calibrated"},
    {"temperature_schedule": "step"},
    {"student_temperature": "calibrated"},
)
"""What cells set, as options of `train`: LPQLD's way, then each of its two parts alone."""
OTHERS = ("pq:5", "pq:10", "pq:20", "sampled:10", "sampled:50")
"""Baselines of others.py, from coarse to fine."""
CALIBRATION = ((0.0, 0.9), (0.0, 0.5), (0.1, 0.3), (0.3, 0.05), (0.9, 0.0))
"""Shares of (easy, hard) batches that the paper leaves out before it prunes."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Ratios, seeds and settings of the cells.

    trial_ratio: where teachers are compared. check_iterations: of recovery, each about three times the last.
    ratios: of the main table; more_ratios: of group b2. seeds: of every row; other_seeds: of codecs chosen on
    seed 0. budgets: codecs get the bytes of f16 at these ratios; group c has the first, phases the first two.
    real_ratios: of group real.
    """

    scale: Scale
    trial_ratio: float = 10
    trial_seeds: int = 2
    check_iterations: tuple[int, ...] = (300, 1000, 3000)
    ratios: tuple[float, ...] = (10, 40, 1)
    more_ratios: tuple[float, ...] = (20, 30)
    seeds: tuple[int, ...] = (0, 1, 2)
    other_seeds: tuple[int, ...] = (1, 2, 3)
    budgets: tuple[float, ...] = (40, 160, 10)
    fidelities: tuple[float, ...] = (0.97, 0.99, 0.95, 0.90, 0.80)
    topk: tuple[str, ...] = ("topk:5", "topk:50")
    metric_ratio: float = 40
    real_ratios: tuple[float, ...] = (40, 10, 160, 1)
    others: tuple[str, ...] = OTHERS
    calibration_ratios: tuple[float, ...] = (20, 30, 50, 100)


FULL = Plan(scale=TINY100)
QUICK = Plan(
    scale=replace(DIGITS, teacher_epochs=1),
    trial_ratio=2,
    trial_seeds=1,
    check_iterations=(1, 2, 4),
    ratios=(2, 1),
    more_ratios=(4,),
    seeds=(0,),
    other_seeds=(1,),
    budgets=(2,),
    fidelities=(0.9,),
    topk=("topk:2",),
    metric_ratio=2,
    real_ratios=(2,),
    others=("pq:5", "sampled:10"),
    calibration_ratios=(10,),
)


@dataclass(frozen=True, kw_only=True)
class RecoveryCheck:
    """A small recovery whose losses say whether so many iterations are enough."""

    method: str
    iterations: int
    teacher: str

    @property
    def key(self) -> str:
        """Return the settings as one line."""
        return json.dumps(asdict(self), sort_keys=True)

    def __str__(self) -> str:
        return f"check of {self.method} after {self.iterations} iterations, {self.teacher} teacher"


Task = Cell | RecoveryCheck


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """What the finished cells decide; None and missing budgets are still open.

    checks: how many numbers of iterations to try. klt, topk: the best fidelity and the best codec in the
    bytes of f16 at a ratio.
    """

    teacher: str | None = None
    iterations: int | None = None
    checks: int = 2
    klt: dict[float, float] = field(default_factory=dict)
    topk: dict[float, str] = field(default_factory=dict)

    def fewer_iterations(self, plan: Plan) -> int | None:
        """Return the next smaller number of iterations that was tried; None if there is none."""
        return max((tried for tried in plan.check_iterations if tried < (self.iterations or 0)), default=None)

    def guessed(self, plan: Plan) -> Decisions:
        """Return decisions with guesses for the open ones, to count the remaining tasks."""
        return Decisions(
            teacher=self.teacher or TEACHERS[0],
            iterations=self.iterations or plan.check_iterations[1],
            checks=self.checks,
            klt={budget: self.klt.get(budget, plan.fidelities[0]) for budget in plan.budgets},
            topk={budget: self.topk.get(budget, plan.topk[0]) for budget in plan.budgets},
        )


def phase_variants(plan: Plan) -> tuple[dict[str, Any], ...]:
    """Return what the cells of group phases set. The phases are hald's, scaled to the plan's epochs."""
    sixth = plan.scale.epochs // 6
    phases = {"phases": f"soft:{sixth},hard:{plan.scale.epochs - 2 * sixth},soft:{sixth}"}
    step = {"temperature_schedule": "step"}
    return phases, step, {**phases, **step}


def trial_cells(plan: Plan) -> list[Cell]:
    """Return the students that compare teachers; their images are real, which need no recovery."""
    return [
        Cell(method="real", ratio=plan.trial_ratio, seed=seed, teacher=teacher)
        for seed in range(plan.trial_seeds)
        for teacher in TEACHERS
    ]


def recovery_checks(plan: Plan, teacher: str, count: int) -> list[RecoveryCheck]:
    """Return the checks of the first `count` numbers of iterations."""
    return [
        RecoveryCheck(method=method, iterations=iterations, teacher=teacher)
        for iterations in plan.check_iterations[:count]
        for method in ("lpld", "sre2l")
    ]


def tasks(plan: Plan, decided: Decisions, groups: Sequence[str] = GROUPS) -> Iterator[tuple[str, Task]]:
    """Yield (group, task) in order, each task once, as far as the decisions allow."""
    seen: set[str] = set()
    for group in GROUPS:
        if group not in groups:
            continue
        for task in _group(group, plan, decided):
            if task.key not in seen:
                seen.add(task.key)
                yield group, task


def _group(group: str, plan: Plan, decided: Decisions) -> Iterator[Task]:
    if group == "a":
        yield from trial_cells(plan)
        if decided.teacher is not None:
            yield from recovery_checks(plan, decided.teacher, decided.checks)
    elif decided.teacher is not None and decided.iterations is not None:
        yield from _Cells(plan, decided).of(group)


class _Cells:
    """The cells of the groups after `a`."""

    def __init__(self, plan: Plan, decided: Decisions) -> None:
        self._plan = plan
        self._decided = decided

    def of(self, group: str) -> Iterator[Cell]:
        """Return a group's cells."""
        makers: dict[str, Callable[[], Iterator[Cell]]] = {
            "b": self._main,
            "c": lambda: self._codecs(self._plan.budgets[0]),
            "d": self._policies,
            "d2": self._temperatures,
            "metrics": lambda: self._metrics(self._plan.seeds[:1]),
            "settled": self._settled,
            "b2": self._more,
            "c2": lambda: chain.from_iterable(map(self._codecs, self._plan.budgets[1:])),
            "real": self._real,
            "teacher": self._teacher,
            "phases": self._phases,
            "others": self._others,
            "e": self._images,
            "f": self._students,
            "ablation": self._ablation,
            "calibration": self._calibration,
        }
        return makers[group]()

    def cell(self, method: str, ratio: float, **settings: object) -> Cell:
        """Return a cell with the teacher and the iterations that were decided."""
        teacher, iterations = self._decided.teacher, self._decided.iterations
        decided = {"teacher": teacher, "iterations": iterations if method in RECOVERED else None}
        return Cell(**{"method": method, "ratio": ratio, **decided, **settings})  # type: ignore[arg-type]

    def _main(self) -> Iterator[Cell]:
        return self._table(("lpld", "sre2l"), self._plan.ratios)

    def _more(self) -> Iterator[Cell]:
        yield from self._table(("lpld", "sre2l"), self._plan.more_ratios)
        yield from self._table(("sre2l",), [r for r in self._plan.ratios if r > 1], pool="epochs")
        yield from self._metrics(self._plan.seeds[1:])

    def _metrics(self, seeds: Sequence[int]) -> Iterator[Cell]:
        for seed in seeds:
            for by, prefer in BEST_METRICS:
                yield self.cell("lpld", self._plan.metric_ratio, seed=seed, by=by, prefer=prefer)

    def _settled(self) -> Iterator[Cell]:
        fewer = self._decided.fewer_iterations(self._plan)
        for seed in self._plan.seeds if fewer is not None else ():
            for method in ("lpld", "sre2l"):
                yield self.cell(method, self._plan.trial_ratio, seed=seed)
                yield self.cell(method, self._plan.trial_ratio, seed=seed, iterations=fewer)

    def _students(self) -> Iterator[Cell]:
        for student in self._plan.scale.other_students:
            yield from (self.cell("lpld", ratio, student=student) for ratio in self._plan.ratios)

    def _table(self, methods: Sequence[str], ratios: Sequence[float], **settings: object) -> Iterator[Cell]:
        for seed in self._plan.seeds:
            for ratio in ratios:
                yield from (self.cell(method, ratio, seed=seed, **settings) for method in methods)

    def _codecs(self, budget: float) -> Iterator[Cell]:
        plan, decided = self._plan, self._decided
        for fidelity in plan.fidelities:
            yield self.cell("lpld", budget, codec="klt", fidelity=fidelity)
        for codec in (*plan.topk, "int4"):
            yield self.cell("lpld", budget, codec=codec)
        for seed in plan.other_seeds:
            if budget in decided.klt:
                yield self.cell("lpld", budget, codec="klt", fidelity=decided.klt[budget], seed=seed)
            if budget in decided.topk:
                yield self.cell("lpld", budget, codec=decided.topk[budget], seed=seed)
            # Compared with f16 in the same bytes, and with all labels.
            yield self.cell("lpld", budget, seed=seed)
            yield self.cell("lpld", 1, seed=seed)

    def _policies(self) -> Iterator[Cell]:
        for seed in self._plan.seeds:
            for ratio in self._plan.ratios:
                yield self.cell("lpld", ratio, seed=seed, policy="shuffled")
                yield self.cell(
                    "lpld", ratio, seed=seed, pool="epochs", policy="epochs" if ratio == 1 else None
                )

    def _temperatures(self) -> Iterator[Cell]:
        budget = self._plan.budgets[0]
        if budget not in self._decided.klt:
            return
        codecs: tuple[dict[str, object], ...] = (
            {"codec": "f16"},
            {"codec": "klt", "fidelity": self._decided.klt[budget]},
        )
        # Not on seed 0: klt's fidelity was chosen on it.
        for seed in self._plan.other_seeds:
            for codec in codecs:
                yield self.cell("lpld", budget, seed=seed, **codec)
                for variant in TEMPERATURES:
                    yield self.cell("lpld", budget, seed=seed, **codec, **variant)

    def _real(self) -> Iterator[Cell]:
        """Yield real images and lpld in f16, and in klt of the fidelity that is best at the first budget."""
        plan, fidelity = self._plan, self._decided.klt.get(self._plan.budgets[0])
        for ratio, method in product(plan.real_ratios, ("real", "lpld")):
            yield from (self.cell(method, ratio, seed=seed) for seed in plan.seeds)
            for seed in plan.other_seeds if fidelity is not None else ():
                yield self.cell(method, ratio, seed=seed, codec="klt", fidelity=fidelity)

    def _teacher(self) -> Iterator[Cell]:
        # Whole epochs at 1x are replayed in turn, so a student sees each label once.
        for seed, method, codec in product(self._plan.other_seeds, ("lpld", "real"), SHIPPED):
            yield self.cell(method, 1, seed=seed, pool="epochs", codec=codec)

    def _phases(self) -> Iterator[Cell]:
        for budget, seed in product(self._plan.budgets[:2], self._plan.other_seeds):
            codecs: list[dict[str, object]] = [{"codec": "f16"}]
            if budget in self._decided.klt:
                codecs.append({"codec": "klt", "fidelity": self._decided.klt[budget]})
            for codec, variant in product(codecs, ({}, *phase_variants(self._plan))):
                yield self.cell("lpld", budget, seed=seed, **codec, **variant)

    def _others(self) -> Iterator[Cell]:
        for codec in self._plan.others:
            yield self.cell("lpld", self._plan.budgets[0], seed=self._plan.other_seeds[0], codec=codec)

    def _images(self) -> Iterator[Cell]:
        plan, scale = self._plan, self._plan.scale
        many = [
            self.cell("lpld", ratio, ipc=scale.large_ipc, epochs=scale.large_epochs) for ratio in plan.ratios
        ]
        # These images take long: one process starts with them while the others do the next cells.
        yield many[0]
        yield from (self.cell("lpld", ratio, mix="cutmix") for ratio in plan.ratios)
        for seed in plan.seeds:
            for ratio in plan.ratios:
                yield from (self.cell(method, ratio, seed=seed) for method in ("real", "cda", "rded"))
        yield from many[1:]

    def _ablation(self) -> Iterator[Cell]:
        """Yield the paper's rows: none, +C, +C+ILP, +C+CS, +C+CS+ILP."""
        rows = [("sre2l", "epochs"), *product(("lpld-global", "lpld"), ("epochs", "batches"))]
        for ratio, (method, pool) in product(self._plan.ratios, rows):
            yield self.cell(method, ratio, pool=pool)

    def _calibration(self) -> Iterator[Cell]:
        for ratio, (easy, hard) in product(self._plan.calibration_ratios, (*CALIBRATION, (0.0, 0.0))):
            yield self.cell("lpld", ratio, drop_easy=easy, drop_hard=hard)
