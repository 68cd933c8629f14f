from dataclasses import asdict
from pathlib import Path

import pytest

from lpld_labels import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from tests.cli.build_runs import Cli, facts, passed, words_of


def test_prune_writes_the_pool_it_announced(cli: Cli, pool: Path, tmp_path: Path) -> None:
    options = ("prune", pool, tmp_path / "out", "--ratio", 4, "--json")
    announced = facts(cli(*options, "--dry-run"))
    assert not (tmp_path / "out").exists()
    assert announced["batches"] == {"pool": 20, "candidates": 20, "kept": 5}
    assert announced["coverage"]["pool"]["classes"] == 47
    written = facts(cli(*options))
    child = PoolReader(tmp_path / "out")
    assert len(child) == 5
    assert announced["coverage"]["kept"] == written["coverage"]["kept"] == asdict(child.manifest.coverage)
    assert written["content_digest"] == child.manifest.content_digest
    assert written["bytes"]["kept"] == pool_bytes(child.manifest)
    assert written["bytes"]["kept"] == pytest.approx(announced["bytes"]["kept"], rel=0.1)


def test_tables_are_for_people(cli: Cli, pool: Path, tmp_path: Path) -> None:
    options = ("--by", "diff", "--prefer", "uniform", "--level", "epoch", "--ratio", 2)
    shown = words_of(passed(cli("prune", pool, tmp_path / "out", *options, "--dry-run")).stdout)
    for words in (
        "batches candidates 20 batches kept 10",
        "parameters level epoch parameters by diff parameters prefer uniform",
        "coverage pool classes 47",
    ):
        assert words in shown
    done = passed(cli("prune", pool, tmp_path / "out", *options))
    assert PoolReader(tmp_path / "out").manifest.content_digest in done.stdout


def test_budget_takes_units(cli: Cli, pool: Path, tmp_path: Path) -> None:
    found = facts(cli("prune", pool, tmp_path / "out", "--budget", "30.5kB", "--json"))
    assert found["bytes"]["kept"] <= 30500
    assert PoolReader(tmp_path / "out").header.lineage[-1].parameters["settings"]["budget"] == 30500
