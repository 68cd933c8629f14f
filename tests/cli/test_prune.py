"""``lpld-labels prune`` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from tests.factories import make_batches, write_pool

Cli = Callable[..., Result]


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write_pool(tmp_path / "pool", make_batches(epochs=5, per_epoch=4, classes=200))
    return tmp_path / "pool"


def test_prune_writes_the_pool_it_announced(cli: Cli, pool: Path, tmp_path: Path) -> None:
    options = ("prune", pool, tmp_path / "out", "--ratio", 4, "--json")
    plan = cli(*options, "--dry-run")
    assert plan.exit_code == 0, plan.stderr
    assert not (tmp_path / "out").exists()
    announced = json.loads(plan.stdout)
    assert announced["batches"] == {"pool": 20, "candidates": 20, "kept": 5}
    assert announced["coverage"]["pool"]["classes"] == 47
    done = cli(*options)
    assert done.exit_code == 0, done.stderr
    written = json.loads(done.stdout)
    child = PoolReader(tmp_path / "out")
    assert len(child) == 5
    assert announced["coverage"]["kept"] == written["coverage"]["kept"] == asdict(child.manifest.coverage)
    assert written["content_digest"] == child.manifest.content_digest
    assert written["bytes"]["kept"] == pool_bytes(child.manifest)
    assert written["bytes"]["kept"] == pytest.approx(announced["bytes"]["kept"], rel=0.1)


def test_tables_are_for_people(cli: Cli, pool: Path, tmp_path: Path) -> None:
    options = ("--by", "diff", "--prefer", "uniform", "--level", "epoch")
    plan = cli("prune", pool, tmp_path / "out", "--ratio", 2, *options, "--dry-run")
    assert plan.exit_code == 0, plan.stderr
    shown = " ".join(plan.stdout.replace("│", " ").split())
    for words in (
        "batches candidates 20 batches kept 10",
        "parameters level epoch parameters by diff parameters prefer uniform",
        "coverage pool classes 47",
    ):
        assert words in shown
    done = cli("prune", pool, tmp_path / "out", "--ratio", 2, *options)
    assert done.exit_code == 0, done.stderr
    assert PoolReader(tmp_path / "out").manifest.content_digest in done.stdout


def test_budget_takes_units(cli: Cli, pool: Path, tmp_path: Path) -> None:
    done = cli("prune", pool, tmp_path / "out", "--budget", "30.5kB", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["bytes"]["kept"] <= 30500
    assert PoolReader(tmp_path / "out").header.lineage[-1].parameters["settings"]["budget"] == 30500


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--ratio", "0.5"), 1, "ratio is too small (expected a number >= 1, got 0.5)"),
        (("--ratio", "21"), 1, "ratio is too large for this pool"),
        (("--budget", "2kB"), 1, "budget is too small for even one batch (expected at least "),
        (("--budget", "much"), 2, "'much' is not a size"),
        (("--budget", "0"), 2, "'0' is not a size"),
        ((), 1, "give either a ratio or a budget"),
        (("--ratio", "2", "--budget", "1MB"), 1, "give either a ratio or a budget"),
        (("--ratio", "2", "--by", "diff"), 1, "a metric needs prefer"),
        (("--ratio", "2", "--prefer", "hard"), 1, "prefer goes with a metric"),
    ],
)
def test_bad_options_end_in_one_line(
    cli: Cli, pool: Path, tmp_path: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    result = cli("prune", pool, tmp_path / "out", *options)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "out").exists()


def test_existing_out_and_missing_pool(cli: Cli, pool: Path, tmp_path: Path) -> None:
    result = cli("prune", pool, pool, "--ratio", 2)
    assert result.exit_code == 1
    assert "the output is the same as an input" in result.stderr
    result = cli("prune", tmp_path / "nothing", tmp_path / "out", "--ratio", 2)
    assert result.exit_code == 1
    assert "not a label pool" in result.stderr
