"""The plan on 100 classes: its order, decisions and verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.noise import Noise
from benchmarks.accuracy.tiny100.claims import claims
from benchmarks.accuracy.tiny100.decide import decisions
from benchmarks.accuracy.tiny100.plan import (
    BEST_METRICS,
    FULL,
    GROUPS,
    Decisions,
    RecoveryCheck,
    Task,
    tasks,
    trial_cells,
)
from benchmarks.accuracy.tiny100.report import expected_seconds, reported, status
from benchmarks.accuracy.tiny100.store import Results
from tests.benchmarks.accuracy.made_results import add_students, decided_results


def _cells(group: str, results: Results) -> list[Cell]:
    return [task for _, task in tasks(FULL, decisions(FULL, results), (group,)) if isinstance(task, Cell)]


def test_nothing_depends_on_what_is_not_decided_yet() -> None:
    assert [task for _, task in tasks(FULL, decisions(FULL, Results()))] == trial_cells(FULL)
    results = decided_results(losses=())
    todo = [task for _, task in tasks(FULL, decisions(FULL, results))]
    assert all(isinstance(task, RecoveryCheck) for task in todo[len(trial_cells(FULL)) :])
    assert {task.teacher for task in todo[len(trial_cells(FULL)) :]} == {"plain"}


def test_the_order_is_that_of_what_must_be_shown() -> None:
    found = list(tasks(FULL, Decisions().guessed(FULL)))
    order = [GROUPS.index(group) for group, _ in found]
    assert order == sorted(order)
    assert len({task.key for _, task in found}) == len(found)
    b = [task for group, task in found if group == "b"]
    assert {(c.method, c.ratio, c.seed) for c in b if isinstance(c, Cell)} == {
        (method, ratio, seed) for method in ("lpld", "sre2l") for ratio in (1, 10, 40) for seed in (0, 1, 2)
    }
    policies = {(c.policy, c.pool, c.ratio) for _, c in found if isinstance(c, Cell) and c.policy}
    assert policies >= {("shuffled", "batches", ratio) for ratio in (1, 10, 40)} | {("epochs", "epochs", 1)}


def test_the_teacher_with_better_students_is_taken() -> None:
    assert decisions(FULL, decided_results()).teacher == "plain"
    smoothed = decided_results(plain=0.2)
    assert decisions(FULL, smoothed).teacher == "smoothed"
    # Checks of the other teacher do not count.
    assert decisions(FULL, smoothed).iterations is None


@pytest.mark.parametrize(
    ("losses", "iterations"),
    [
        ((1.0,), None),
        ((1.0, 0.96), 300),
        ((1.0, 0.9), None),
        ((1.0, 0.9, 0.87), 1000),
        ((1.0, 0.9, 0.5), 3000),
    ],
)
def test_iterations_are_enough_when_three_times_as_many_change_little(
    losses: tuple[float, ...], iterations: int | None
) -> None:
    assert decisions(FULL, decided_results(losses=losses)).iterations == iterations


def test_the_longest_check_is_made_only_if_it_is_needed() -> None:
    def longest(results: Results) -> list[Task]:
        found = [task for _, task in tasks(FULL, decisions(FULL, results), ("a",))]
        return [task for task in found if isinstance(task, RecoveryCheck) and task.iterations == 3000]

    assert longest(decided_results(losses=(1.0, 0.99))) == []
    # Nor while the checks that decide it are under way.
    assert longest(decided_results(losses=(1.0,))) == []
    assert len(longest(decided_results(losses=(1.0, 0.9)))) == 2


def test_fidelity_is_chosen_on_seed_0_and_reported_on_others() -> None:
    results = decided_results()
    first = _cells("c", results)
    assert {cell.fidelity for cell in first if cell.codec == "klt"} == {0.99, 0.97, 0.95, 0.9, 0.8}
    for fidelity, top1 in zip((0.99, 0.97, 0.95, 0.9), (0.30, 0.31, 0.35, 0.33), strict=True):
        add_students(results, top1, seeds=(0,), ratio=40, codec="klt", fidelity=fidelity)
    assert decisions(FULL, results).klt == {}
    # One that does not fit is no reason to wait.
    (missing,) = [c for c in first if c.fidelity == 0.8]
    results.refused[missing.key] = (missing, "too few bytes")
    assert decisions(FULL, results).klt == {40: 0.95}
    chosen = [cell for cell in _cells("c", results) if cell.codec == "klt" and cell.seed > 0]
    assert [(cell.fidelity, cell.seed) for cell in chosen] == [(0.95, 1), (0.95, 2), (0.95, 3)]


def test_rows_of_a_chosen_codec_are_without_the_seed_it_was_chosen_on() -> None:
    results = decided_results()
    add_students(results, 0.30, seeds=(0, 1, 2, 3), ratio=40, codec="klt", fidelity=0.97)
    add_students(results, 0.29, seeds=(0,), ratio=40, codec="klt", fidelity=0.99)
    add_students(results, 0.24, seeds=(0, 1, 2, 3), ratio=40)
    kept = reported(FULL, list(results.records.values()))
    seeds: dict[tuple[str, float | None], list[int]] = {}
    for record in kept:
        if record.cell.ratio == 40:
            seeds.setdefault((record.cell.codec, record.cell.fidelity), []).append(record.cell.seed)
    assert seeds == {("klt", 0.97): [1, 2, 3], ("klt", 0.99): [0], ("f16", None): [0, 1, 2, 3]}


def test_claims_are_judged() -> None:
    results = decided_results()
    add_students(results, 0.34, ratio=1, seeds=(0, 1, 2, 3))
    add_students(results, 0.33, ratio=10)
    add_students(results, 0.24, ratio=40, seeds=(0, 1, 2, 3))
    add_students(results, 0.27, ratio=1, method="sre2l")
    add_students(results, 0.31, ratio=10, method="sre2l")
    for fidelity in FULL.fidelities:
        add_students(
            results, 0.34 if fidelity == 0.97 else 0.30, seeds=(0,), ratio=40, codec="klt", fidelity=fidelity
        )
    add_students(results, 0.335, seeds=(1, 2, 3), ratio=40, codec="klt", fidelity=0.97)
    warmer = {"ratio": 40, "codec": "klt", "fidelity": 0.97, "temperature_schedule": "step"}
    add_students(results, 0.36, seeds=(1, 2, 3), **warmer)
    add_students(results, 0.20, ratio=40, by="diff_signed", prefer="easy")
    add_students(results, 0.30, ratio=10, policy="shuffled")
    found = {claim.claim: claim for claim in claims(FULL, results, Noise(deviation=0.005, freedom=100))}
    verdicts = {name: claim.verdict for name, claim in found.items()}
    assert verdicts == {
        "class-wise beats cross-class by at least 3 points (1x, ILP)": "holds",
        "class-wise beats cross-class by at least 3 points (10x, ILP)": "does not hold",
        "10x costs little: at most 3 points (lpld)": "holds",
        "10x costs little: at most 3 points (sre2l)": "holds",
        "klt 0.97 in the bytes of f16 at 40x is at least 6 points above it (ours)": "holds",
        "klt 0.97 in the bytes of f16 at 40x is within 2 points of all labels in f16 (ours)": "holds",
        "klt 0.97 beats f16 in the bytes of f16 at 40x (ours)": "holds",
        "temperature schedule step helps klt 0.97 in the bytes of f16 at 40x": "holds",
        "klt 0.97 with temperature schedule step in the bytes of f16 at 40x is within 2 points of all labels "
        "in f16 at a constant temperature (ours)": "holds",
        "random pruning is no worse than the mean of 1 metrics (40x)": "holds",
        "random pruning is no worse than the best of 1 metrics, diff_signed easy (40x)": "holds",
        "shuffled is no worse than batches (10x)": "does not hold",
    }
    # Seed 0, on which the fidelity was chosen, is not among the students that judge it.
    assert "(3 and 3 students)" in found["klt 0.97 beats f16 in the bytes of f16 at 40x (ours)"].detail
    assert claims(FULL, results, Noise(deviation=0.1, freedom=100))[0].verdict == "undecided"


def test_a_policy_is_judged_by_pairs_of_the_same_seed() -> None:
    """Students of different seeds scatter by points, those of the same seed differ by tenths of them."""
    results = decided_results()
    gains = {1: (0.001, 0.003, 0.002), 10: (-0.014, -0.011, -0.014), 40: (0.01, 0.008, 0.009)}
    for ratio, differences in gains.items():
        for seed, gain in enumerate(differences):
            add_students(results, 0.3 - 0.02 * seed, seeds=(seed,), ratio=ratio)
            add_students(results, 0.3 - 0.02 * seed + gain, seeds=(seed,), ratio=ratio, policy="shuffled")
    # Of a seed that only one of them has, nothing is learnt.
    add_students(results, 0.9, seeds=(3,), ratio=1)
    found = {claim.claim: claim for claim in claims(FULL, results, Noise(deviation=0.02, freedom=100))}
    verdicts = {name: claim.verdict for name, claim in found.items() if name.startswith("shuffled")}
    assert verdicts == {
        "shuffled is no worse than batches (1x)": "holds",
        "shuffled is no worse than batches (10x)": "does not hold",
        "shuffled is no worse than batches (40x)": "holds",
        "shuffled is no worse than batches (mean of all ratios)": "holds",
    }
    one = found["shuffled is no worse than batches (1x)"]
    assert one.difference == pytest.approx(0.012)
    assert "3 pairs" in one.detail
    mean = found["shuffled is no worse than batches (mean of all ratios)"]
    assert mean.difference == pytest.approx(0.01 - 0.0006667, abs=1e-6)
    assert mean.two_errors == pytest.approx(one.two_errors / 3**0.5)
    assert "10x costs little: at most 3 points (lpld, shuffled)" in found


def test_the_metrics_are_the_best_of_tiny20(project: Path) -> None:
    rows = json.loads((project / "benchmarks" / "results" / "accuracy.json").read_text())["results"]["rows"]
    # Where nothing is mixed every view has the same cut_ratio.
    by_metric = {
        (row["by"], row["prefer"]): row["mean"] for row in rows if row["prefer"] and row["by"] != "cut_ratio"
    }
    best = sorted(by_metric, key=lambda name: -by_metric[name])[: len(BEST_METRICS)]
    assert by_metric[best[0]] == by_metric[BEST_METRICS[0]]
    assert sum(by_metric[name] for name in BEST_METRICS) == pytest.approx(sum(by_metric[n] for n in best))


def test_temperatures_are_planned_for_both_codecs() -> None:
    decided = Decisions().guessed(FULL)
    found = [task for _, task in tasks(FULL, decided, ("d2",)) if isinstance(task, Cell)]
    assert {cell.codec for cell in found} == {"f16", "klt"}
    assert all(cell.ratio == 40 for cell in found)
    assert len([cell for cell in found if cell.temperature_schedule or cell.student_temperature]) == 18


def test_status_counts_everything_and_knows_how_long_it_takes() -> None:
    empty, begun = status(FULL, Results()), status(FULL, decided_results())
    assert empty["a"]["done"] == 0
    assert begun["a"] == {"done": 8, "left": 0, "seconds": 0.0}
    assert begun["b"]["left"] == empty["b"]["left"] == 18
    assert begun["b"]["seconds"] == pytest.approx(18 * 600)
    large = Cell(method="lpld", ratio=1, ipc=50, epochs=100)
    assert expected_seconds(FULL, decided_results(), large) == pytest.approx(600 * 5 / 3)
