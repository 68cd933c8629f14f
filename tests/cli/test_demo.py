"""A short run of the demo, and what its table says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from lpld_cli.demo import Demo, train_on_true_classes
from lpld_cli.demo_report import ROWS, Line, findings, show_findings, show_table

from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "out"


def test_the_demo_goes_the_whole_way(out: Path, cli: Callable[..., Result]) -> None:
    pytest.importorskip("mlxtend")
    stale = out / "pools/lpld_1x/pool.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("left by an earlier demo")
    (out / "mine.txt").write_text("not the demo's")
    result = cli("demo", "--out", out, "--epochs", 20, "--teacher-epochs", 1, "--iterations", 2)
    assert result.exit_code == 0, result.output
    assert "Label bytes against accuracy" in result.stdout
    assert str(out / "demo.html") in result.stdout
    assert "lpld-labels" not in result.stderr, "commands belong in the log"
    lines = {line["key"]: line for line in json.loads((out / "table.json").read_text())["lines"]}
    assert list(lines) == ["teacher", *ROWS]
    pools = [f"{source}_{ratio}x" for source in ("lpld", "sre2l") for ratio in (1, 10, 40)]
    assert [lines[key]["batches"] for key in pools] == [40, 4, 1] * 2
    assert all(0 <= line["top1"] <= 1 for line in lines.values())
    assert (out / "mine.txt").exists()
    log = (out / "demo.log").read_text()
    assert [log.count(f"$ lpld-labels {name} ") for name in ("squeeze", "recover", "build", "prune")] == [
        1,
        2,
        3,
        4,
    ]
    assert log.count("$ lpld-labels train ") == 8
    page = (out / "demo.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert all(name in page for name in ROWS.values())
    with PoolReader(out / "pools/lpld_40x") as small, PoolReader(out / "pools/lpld_1x") as full:
        assert len(full.images) == 100
        for key in small.keys:
            assert (small.read_labels(key) == full.read_labels(key)).all()
        with PoolReader(out / "pools/lpld_klt") as klt:
            assert klt.codec.name == "klt"
            assert len(klt) > len(small)
            assert pool_bytes(klt.manifest) <= pool_bytes(small.manifest)


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
    assert findings(top1, spread=1.5)[2].shows
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
        "lpld_core.training.train_teacher.train_teacher", lambda images, job, **rest: jobs.append(job)
    )
    monkeypatch.setattr("lpld_core.training.evaluate.ValidationSet", lambda *where, **size: None)
    demo = Demo(out=tmp_path, seed=7, epochs=1, teacher_epochs=1, iterations=1)
    train_on_true_classes(demo)
    assert [job.seed for job in jobs] == [7]
