"""What tiny100 trains, in which order, and what it decides on the way.

    a        teachers with and without label smoothing, judged by students of real images; then how many
             iterations of recovery are enough
    b        lpld and sre2l at 1x, 10x, 40x, drawn from all batches (ILP)
    c        codecs in the bytes of f16 at 40x; the best of each kind, chosen on seed 0, on seeds 1 to 3
    d        policies: shuffled, whole epochs; d2: temperatures that change, and the student's own
    metrics  pruning by the best metrics of tiny20
    settled  students of images of fewer iterations: whether more of them still matter
    b2       20x and 30x, whole epochs of sre2l, metrics on other seeds
    c2       codecs in the bytes of f16 at 160x and 10x
    f        another student
    e        real, cda and rded images; CutMix; many images per class

A plan is a pure function of what was decided, and decisions are a pure function of finished cells.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain

from benchmarks.accuracy import temperatures
from benchmarks.accuracy.cells import DIGITS, TINY100, Cell, Scale

GROUPS = ("a", "b", "c", "d", "d2", "metrics", "settled", "b2", "c2", "f", "e")
TEACHERS = ("plain", "smoothed")
RECOVERED = ("lpld", "sre2l", "cda")
BEST_METRICS = (("diff_signed", "easy"), ("correct", "easy"), ("confidence", "easy"))
"""The best on tiny20 (results/accuracy.json) of those that can tell views apart where none is mixed."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much of everything.

    trial_ratio: where teachers are compared. check_iterations: of recovery, each about three times the last.
    ratios, more_ratios: of the main table and after it. seeds: of every row; other_seeds: of what was
    chosen on seed 0. budgets: in the bytes of f16 at these ratios, the first one in group c.
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


FULL = Plan(scale=TINY100)
QUICK = Plan(
    scale=replace(
        DIGITS, mix="none", epochs=12, large_epochs=4, teacher_epochs=1, student_rate=0.002, amp=True
    ),
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
    """What finished cells have settled; None and missing budgets are still open.

    checks: how many numbers of iterations are to be tried. klt: the fidelity, topk: the codec whose
    student was best in the bytes of f16 at a ratio.
    """

    teacher: str | None = None
    iterations: int | None = None
    checks: int = 2
    klt: dict[float, float] = field(default_factory=dict)
    topk: dict[float, str] = field(default_factory=dict)

    def fewer_iterations(self, plan: Plan) -> int | None:
        """Return the number that was tried before the one that was taken; None if it was the first."""
        return max((tried for tried in plan.check_iterations if tried < (self.iterations or 0)), default=None)

    def guessed(self, plan: Plan) -> Decisions:
        """Return decisions with a guess for what is open: enough to count what is left."""
        return Decisions(
            teacher=self.teacher or TEACHERS[0],
            iterations=self.iterations or plan.check_iterations[1],
            checks=self.checks,
            klt={budget: self.klt.get(budget, plan.fidelities[0]) for budget in plan.budgets},
            topk={budget: self.topk.get(budget, plan.topk[0]) for budget in plan.budgets},
        )


def trial_cells(plan: Plan) -> list[Cell]:
    """Return the students that teachers are judged by; real images need nothing but a teacher."""
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
    """Yield (group, task) in the order to do them, each task once: what can be told so far."""
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
            "e": self._images,
            "f": self._students,
        }
        return makers[group]()

    def cell(self, method: str, ratio: float, **settings: object) -> Cell:
        """Return a cell with what was decided."""
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
            # What these are compared with: f16 in the same bytes, and all labels.
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
        # Not on seed 0, which klt's fidelity was chosen on.
        for seed in self._plan.other_seeds:
            for codec in codecs:
                yield self.cell("lpld", budget, seed=seed, **codec)
                for variant in temperatures.VARIANTS:
                    yield self.cell("lpld", budget, seed=seed, **codec, **variant)

    def _images(self) -> Iterator[Cell]:
        plan, scale = self._plan, self._plan.scale
        many = [
            self.cell("lpld", ratio, ipc=scale.large_ipc, epochs=scale.large_epochs) for ratio in plan.ratios
        ]
        # So many images take long: one process begins with them, the others meanwhile do what needs none.
        yield many[0]
        yield from (self.cell("lpld", ratio, mix="cutmix") for ratio in plan.ratios)
        for seed in plan.seeds:
            for ratio in plan.ratios:
                yield from (self.cell(method, ratio, seed=seed) for method in ("real", "cda", "rded"))
        yield from many[1:]
