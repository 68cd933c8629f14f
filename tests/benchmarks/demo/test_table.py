"""What the table of the demo says. The demo itself runs in test_whole_demo.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.demo.run import Demo, train_on_true_classes
from benchmarks.demo.table import ROWS, Line, findings, show_findings, show_table


def test_a_claim_that_does_not_show_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    top1 = dict.fromkeys(ROWS, 0.5)
    top1 |= {"real_1x": 0.53, "sre2l_10x": 0.51, "lpld_klt": 0.54}
    soft, same, behind, also_same, klt = findings(top1)
    assert [soft.shows, same.shows, behind.shows, also_same.shows, klt.shows] == [
        True,
        True,
        False,
        True,
        False,
    ]
    scattered = findings(top1, {"lpld_10x": 0.015, "sre2l_10x": 0.002})[2]
    assert scattered.shows
    assert scattered.text.endswith("-1.0 points; no difference, runs scatter by 1.5")
    ahead = findings({**top1, "lpld_10x": 0.52}, {"lpld_10x": 0.015, "sre2l_10x": 0.002})[2]
    assert ahead.text.endswith("+1.0 points; no difference, runs scatter by 1.5")
    assert not findings(top1, {"lpld_40x": 0.015})[2].shows, "the spread of other rows does not count"
    assert klt.text == "klt over f16 in the bytes of 40x: +4.0 points; does not show here"
    missing = findings({**top1, "lpld_klt": None})[-1]
    assert not missing.shows
    assert "do not fit at this size" in missing.text
    lines = [Line(key="lpld_klt", name="klt", top1=None), Line(key="real_1x", name="real", top1=0.5)]
    show_table(lines)
    show_findings(lines)
    printed = capsys.readouterr().out
    assert "does not fit" in printed
    assert printed.count("not measured") == 5


def test_the_seed_reaches_what_learns_from_true_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = []
    monkeypatch.setattr(
        "lpld_core.train.train_teacher.train_teacher", lambda images, job, **rest: jobs.append(job)
    )
    monkeypatch.setattr("lpld_core.train.evaluate.ValidationSet", lambda *where, **size: None)
    demo = Demo(out=tmp_path, seed=7, epochs=1, teacher_epochs=1, iterations=1)
    train_on_true_classes(demo)
    assert [job.recipe.seed for job in jobs] == [7]
