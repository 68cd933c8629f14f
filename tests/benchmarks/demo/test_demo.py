"""What the demo's table says; test_whole_demo.py runs the demo."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.demo.run import Demo, train_on_true_classes
from benchmarks.demo.table import CLAIMS, ROWS, Finding, Line, findings


def lines(**top1: tuple[float, ...]) -> list[Line]:
    usual = (0.5, 0.52, 0.48)
    return [
        Line(key=key, name=name, top1=top1.get(key, usual), views=25, pool_bytes=900)
        for key, name in ROWS.items()
    ]


def found(**top1: tuple[float, ...]) -> dict[str, Finding]:
    return {finding.claim: finding for finding in findings(lines(**top1))}


def test_a_difference_counts_beyond_two_standard_errors() -> None:
    claim = "klt over f16 in the bytes of 10x"
    ahead = found(lpld_klt=(0.6, 0.62, 0.58))[claim]
    assert ahead.points == pytest.approx(10)
    assert ahead.two_errors == pytest.approx(2 * 2 * (2 / 3) ** 0.5)
    assert ahead.verdict == "holds"
    assert ahead.text == f"{claim}: +10.0 points (+/- 3.3)"
    behind = found(lpld_klt=(0.4, 0.42, 0.38))[claim]
    assert behind.verdict == "does not hold"
    close = found(lpld_klt=(0.53, 0.55, 0.51))[claim]
    assert close.verdict == "undecided"
    assert close.text == f"{claim}: +3.0 points (+/- 3.3); too close to tell at this size"
    assert list(found()) == list(CLAIMS)


def test_one_student_and_no_student_decide_nothing() -> None:
    alone = findings(
        [Line(key=key, name=name, top1=(0.5 + 0.1 * n,)) for n, (key, name) in enumerate(ROWS.items())]
    )
    assert {finding.verdict for finding in alone} == {"undecided"}
    missing = found(lpld_klt=())["klt over f16 in the bytes of 10x"]
    assert missing.verdict == "undecided"
    assert "do not fit at this size" in missing.text


def test_the_seed_reaches_what_learns_from_true_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Any] = []
    train = "lpld_core.train.train_teacher.train_teacher"
    monkeypatch.setattr(train, lambda images, job, **rest: jobs.append(job))
    monkeypatch.setattr("lpld_core.train.evaluate.ValidationSet", lambda *where, **size: None)
    train_on_true_classes(Demo(out=tmp_path, seed=7, epochs=1))
    assert [job.recipe.seed for job in jobs] == [7]
