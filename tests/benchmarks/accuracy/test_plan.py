from typing import Any

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.claims import claims
from benchmarks.accuracy.noise import Noise
from benchmarks.accuracy.plan import FULL, RecoveryCheck, phase_variants, trial_cells
from benchmarks.accuracy.settle import CheckResult
from benchmarks.accuracy.store import Results
from tests.benchmarks.accuracy.made_results import made_record


def decided_results() -> Results:
    """Return results in which teachers and iterations are settled."""
    results = Results()
    for cell in trial_cells(FULL):
        results.records[cell.key] = made_record(cell, 0.33 if cell.teacher == "plain" else 0.30)
    for iterations, loss in zip(FULL.check_iterations, (1.0, 0.99), strict=False):
        for method in ("lpld", "sre2l"):
            check = RecoveryCheck(method=method, iterations=iterations, teacher="plain")
            results.checks[check] = CheckResult(loss=loss, last_tenth=0.0, curve=(loss,), seconds=30.0)
    return results


def add_students(results: Results, top1: float, *, seeds: tuple[int, ...] = (0, 1, 2), **fields: Any) -> None:
    for seed in seeds:
        cell = Cell(**{"method": "lpld", "teacher": "plain", "iterations": 300, **fields, "seed": seed})
        results.records[cell.key] = made_record(cell, top1 + 0.001 * seed)


def verdicts(results: Results, *, deviation: float = 0.005) -> dict[str, str]:
    found = claims(FULL, results, Noise(deviation=deviation, freedom=100))
    return {claim.claim: claim.verdict for claim in found}


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


def test_the_sceptics_choices_are_judged_when_their_students_are_finished() -> None:
    results = decided_results()
    klt: dict[str, Any] = {"codec": "klt", "fidelity": 0.97}
    for fidelity in FULL.fidelities:
        klt_here = {**klt, "fidelity": fidelity}
        add_students(results, 0.34 if fidelity == 0.97 else 0.30, ratio=40, seeds=(0,), **klt_here)
    before = set(verdicts(results))
    later = {"seeds": (1, 2, 3)}
    add_students(results, 0.30, ratio=40, **klt, **later)
    add_students(results, 0.25, ratio=40, codec="pq:10", seeds=(1,))
    add_students(results, 0.20, ratio=40, method="real", iterations=None, **klt, **later)
    add_students(results, 0.45, ratio=1, pool="epochs", codec="teacher-int8", **later)
    phases, _, both = phase_variants(FULL)
    assert phases == {"phases": "soft:50,hard:200,soft:50"}
    add_students(results, 0.36, ratio=40, **klt, **phases, **later)
    # Two of three seeds decide nothing yet.
    add_students(results, 0.36, ratio=40, **klt, **both, seeds=(1, 2))
    found = verdicts(results)
    assert {claim: found[claim] for claim in found if claim not in before} == {
        "lpld images beat random real ones (klt 0.97 in the bytes of f16 at 40x)": "holds",
        "shipping the teacher (int8) beats klt 0.97 in the bytes of f16 at 40x (lpld images)": "holds",
        "soft-hard-soft training helps klt 0.97 in the bytes of f16 at 40x": "holds",
        "klt 0.97 beats pq:10 in the bytes of f16 at 40x (ours)": "holds",
    }


def test_cells_without_phases_keep_their_key() -> None:
    """An unfinished student's directory is named by it."""
    assert "phases" not in Cell(method="lpld", ratio=40).key
    assert Cell(method="lpld", ratio=40, phases="soft:300").key != Cell(method="lpld", ratio=40).key
