"""The plan: decisions that results lead to, and the claims that they support."""

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy.cell import prune_settings, prunings
from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.claims import claims
from benchmarks.accuracy.decide import decisions, explained
from benchmarks.accuracy.noise import Noise, pooled_noise
from benchmarks.accuracy.plan import CALIBRATION, FULL, RecoveryCheck, tasks, trial_cells
from benchmarks.accuracy.report import reported
from benchmarks.accuracy.rows import gathered
from benchmarks.accuracy.settle import CheckResult
from benchmarks.accuracy.store import Results
from benchmarks.pruning_law.rows import result_rows
from lpld_labels.transforms.prune import kept_count
from tests.benchmarks.accuracy.made_results import made_record

UNSETTLED = (1.0, 0.9, 0.5)


def decided_results(*, losses: tuple[float, ...] = (1.0, 0.99), plain: float = 0.33) -> Results:
    """Return results in which teachers and iterations are settled."""
    results = Results()
    for cell in trial_cells(FULL):
        results.records[cell.key] = made_record(cell, plain if cell.teacher == "plain" else 0.30)
    for iterations, loss in zip(FULL.check_iterations, losses, strict=False):
        for method in ("lpld", "sre2l"):
            check = RecoveryCheck(method=method, iterations=iterations, teacher="plain")
            results.checks[check] = CheckResult(loss=loss, last_tenth=0.0, curve=(loss,), seconds=30.0)
    return results


def add_students(results: Results, top1: float, *, seeds: tuple[int, ...] = (0, 1, 2), **fields: Any) -> None:
    for seed in seeds:
        cell = Cell(**{"method": "lpld", "teacher": "plain", "iterations": 300, **fields, "seed": seed})
        results.records[cell.key] = made_record(cell, top1 + 0.001 * seed)


def verdicts(results: Results, *, deviation: float = 0.005, freedom: int = 100) -> dict[str, str]:
    found = claims(FULL, results, Noise(deviation=deviation, freedom=freedom))
    return {claim.claim: claim.verdict for claim in found}


def test_nothing_depends_on_what_is_not_decided_yet() -> None:
    trials = trial_cells(FULL)
    assert [task for _, task in tasks(FULL, decisions(FULL, Results()))] == trials
    todo = [task for _, task in tasks(FULL, decisions(FULL, decided_results(losses=())))]
    assert all(isinstance(task, RecoveryCheck) for task in todo[len(trials) :])


def test_the_teacher_with_better_students_is_taken() -> None:
    assert decisions(FULL, decided_results()).teacher == "plain"
    assert decisions(FULL, decided_results(plain=0.2)).teacher == "smoothed"


@pytest.mark.parametrize(
    ("losses", "iterations"),
    [((1.0,), None), ((1.0, 0.96), 300), ((1.0, 0.9), None), ((1.0, 0.9, 0.87), 1000), (UNSETTLED, 3000)],
)
def test_iterations_are_enough_when_three_times_as_many_change_little(
    losses: tuple[float, ...], iterations: int | None
) -> None:
    assert decisions(FULL, decided_results(losses=losses)).iterations == iterations


def test_fidelity_is_chosen_on_seed_0_and_reported_on_others() -> None:
    results = decided_results()
    for fidelity, top1 in zip((0.99, 0.97, 0.95, 0.9), (0.30, 0.31, 0.35, 0.33), strict=True):
        add_students(results, top1, seeds=(0,), ratio=40, codec="klt", fidelity=fidelity)
    assert decisions(FULL, results).klt == {}
    # One that does not fit counts as tried.
    missing = Cell(method="lpld", teacher="plain", iterations=300, ratio=40, codec="klt", fidelity=0.8)
    results.refused[missing.key] = (missing, "too few bytes")
    decided = decisions(FULL, results)
    assert decided.klt == {40: 0.95}
    planned = [task for _, task in tasks(FULL, decided, ("c",)) if isinstance(task, Cell)]
    klt = [(cell.fidelity, cell.seed) for cell in planned if cell.codec == "klt" and cell.seed > 0]
    assert klt == [(0.95, 1), (0.95, 2), (0.95, 3)]
    add_students(results, 0.35, seeds=(0, 1, 2, 3), ratio=40, codec="klt", fidelity=0.95)
    rows = [record.cell for record in reported(FULL, list(results.records.values()))]
    assert [cell.seed for cell in rows if cell.codec == "klt" and cell.fidelity == 0.95] == [1, 2, 3]


def test_claims_are_judged() -> None:
    results = decided_results()
    add_students(results, 0.34, ratio=1, seeds=(0, 1, 2, 3))
    add_students(results, 0.33, ratio=10)
    add_students(results, 0.24, ratio=40, seeds=(0, 1, 2, 3))
    add_students(results, 0.27, ratio=1, method="sre2l")
    add_students(results, 0.31, ratio=10, method="sre2l")
    klt: dict[str, Any] = {"ratio": 40, "codec": "klt"}
    for fidelity in FULL.fidelities:
        add_students(results, 0.34 if fidelity == 0.97 else 0.30, seeds=(0,), fidelity=fidelity, **klt)
    klt |= {"fidelity": 0.97, "seeds": (1, 2, 3)}
    add_students(results, 0.335, **klt)
    add_students(results, 0.36, temperature_schedule="step", **klt)
    add_students(results, 0.20, ratio=40, by="diff_signed", prefer="easy")
    add_students(results, 0.30, ratio=10, policy="shuffled")
    assert verdicts(results) == {
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
    assert "undecided" in verdicts(results, deviation=0.1).values()


def test_a_policy_is_judged_by_pairs_of_the_same_seed() -> None:
    """Students of different seeds scatter by points, those of the same seed differ by tenths of them."""
    results = decided_results()
    for ratio, gains in {1: (0.001, 0.003, 0.002), 10: (-0.014, -0.011, -0.014)}.items():
        for seed, gain in enumerate(gains):
            add_students(results, 0.3 - 0.02 * seed, seeds=(seed,), ratio=ratio)
            add_students(results, 0.3 - 0.02 * seed + gain, seeds=(seed,), ratio=ratio, policy="shuffled")
    # A seed that only one of them has is no pair.
    add_students(results, 0.9, seeds=(3,), ratio=1)
    found = verdicts(results, deviation=0.02)
    assert found["shuffled is no worse than batches (1x)"] == "holds"
    assert found["shuffled is no worse than batches (10x)"] == "does not hold"


@pytest.mark.parametrize(
    ("fewer", "verdict"), [(0.30, "holds"), (0.25, "does not hold"), (0.2901, "undecided")]
)
def test_recovery_has_settled_if_fewer_iterations_give_as_good_students(
    tmp_path: Path, fewer: float, verdict: str
) -> None:
    results = decided_results(losses=UNSETTLED)
    for ratio in (1, 10):
        add_students(results, 0.30, ratio=ratio, iterations=3000)
        add_students(results, fewer, ratio=ratio, iterations=1000)
    (settled,) = {found for claim, found in verdicts(results, freedom=40).items() if "settled" in claim}
    assert settled == verdict
    # Students of fewer iterations count nowhere else.
    cells = [
        asdict(record.cell) | {"top1": record.top1, "rows": record.rows, "bytes": record.bytes}
        for record in results.records.values()
    ]
    document = {"cells": cells, "scale": FULL.scale.as_json(), "decisions": explained(FULL, results)}
    (tmp_path / "results.json").write_text(json.dumps({"results": document}))
    (row,) = result_rows(tmp_path / "results.json")
    assert (row.top1_before, row.top1) == pytest.approx((30, 30), abs=0.2)


def test_few_students_say_little_about_noise() -> None:
    """Two students that happen to agree would make every difference count."""
    results = decided_results()
    add_students(results, 0.30, ratio=10, seeds=(0, 1))
    few = pooled_noise(gathered(list(results.records.values())))
    for ratio in range(100, 120):
        add_students(results, 0.30, ratio=ratio)
    many = pooled_noise(gathered(list(results.records.values())))
    assert few.freedom < 10
    assert many.freedom > 40
    assert few.two_errors(3, 3) / few.deviation > 1.5 * many.two_errors(3, 3) / many.deviation


@pytest.mark.parametrize(("ratio", "epochs"), [(1, 300), (30, 10), (40, 8), (7, 43)])
def test_epochs_are_kept_whole(ratio: float, epochs: int) -> None:
    settings = prune_settings(FULL.scale, Cell(method="lpld", ratio=ratio, pool="epochs"))
    assert settings.ratio is not None
    assert kept_count(3000, settings.ratio) == 10 * epochs


@pytest.mark.parametrize(("easy", "hard"), [*CALIBRATION, (0.0, 0.0)])
def test_calibration_leaves_as_many_batches_as_pruning_alone(easy: float, hard: float) -> None:
    batches, counts = 3000, []
    for settings in prunings(FULL.scale, Cell(method="lpld", ratio=50, drop_easy=easy, drop_hard=hard), 3000):
        batches = kept_count(batches, settings.ratio or 0)
        counts.append(batches)
    assert counts[:-1] == ([round(3000 * (1 - hard)), round(3000 * (1 - easy - hard))] if easy + hard else [])
    assert counts[-1] == 60


def test_tables_that_share_students_train_them_once() -> None:
    decided = decisions(FULL, decided_results())
    found = [(group, task) for group, task in tasks(FULL, decided) if isinstance(task, Cell)]
    assert len({task.key for _, task in found}) == len(found)
    ablation = {(task.method, task.ratio) for group, task in found if group == "ablation"}
    assert ablation == {*product(["lpld-global"], FULL.ratios), ("lpld", 1), ("sre2l", 1)}
    assert {task.seed for group, task in found if group in ("ablation", "calibration")} == {0}
