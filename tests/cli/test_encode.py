"""``lpld-labels encode`` from the outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels import PoolReader
from tests.factories import make_header
from tests.factories import write_pool as write
from tests.lpld_labels.transforms.test_encode import CLASSES, ROWS, labelled

Cli = Callable[..., Result]


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write(tmp_path / "pool", labelled(), header=make_header(CLASSES, ROWS)).close()
    return tmp_path / "pool"


def test_json(cli: Cli, pool: Path, tmp_path: Path) -> None:
    result = cli("encode", pool, tmp_path / "out", "--codec", "klt", "--fidelity", 0.95, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["codec"] == "klt"
    assert facts["parameters"]["target"] == {"fidelity": 0.95, "temperature": 20.0, "seed": 0}
    assert set(facts["fidelity"]["kept"]) == {"1", "4", "20"}
    assert 0.94 < facts["fidelity"]["kept"]["20"] < 1
    assert facts["bytes"]["before"] > facts["bytes"]["after"]
    with PoolReader(tmp_path / "out") as out:
        assert out.manifest.content_digest == facts["content_digest"]
        assert out.header.lineage[-1].parameters["fidelity"] == facts["fidelity"]


def test_table(cli: Cli, pool: Path, tmp_path: Path) -> None:
    result = cli("encode", pool, tmp_path / "out", "--codec", "topk:5:8")
    assert result.exit_code == 0, result.output
    for word in (
        "topk",
        "parameters k ",
        "parameters value bits",
        "bytes after",
        "fidelity kept 20",
        "fidelity top1",
        "out ",
    ):
        assert word in result.stdout


def test_a_result_that_is_larger_is_told(cli: Cli, pool: Path, tmp_path: Path) -> None:
    smaller = cli("encode", pool, tmp_path / "half", "--codec", "int8")
    assert "larger than" not in smaller.stderr
    result = cli("encode", tmp_path / "half", tmp_path / "again", "--codec", "f32", "--from-lossy")
    assert result.exit_code == 0, result.output
    assert "note: the new pool is larger than the old one" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--codec", "klt", "--fidelity", "1.5"), "0<x<1"),
        (("--codec", "klt", "--temperature", "0"), "x>0"),
    ],
)
def test_usage_errors(cli: Cli, pool: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = cli("encode", pool, tmp_path / "out", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--codec", "zip"), "unknown codec"),
        (("--codec", "topk:500"), "more entries than there are classes"),
        ((), "no codec is given"),
        (("--codec", "int8", "--fidelity", "0.9"), "has no fidelity"),
        (("--codec", "int8", "--temperature", "4"), "has no temperature"),
    ],
)
def test_bad_input_is_one_line(
    cli: Cli, pool: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = cli("encode", pool, tmp_path / "out", *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_no_pool_and_lossy_pool(cli: Cli, pool: Path, tmp_path: Path) -> None:
    result = cli("encode", tmp_path / "nowhere", tmp_path / "out", "--codec", "int8")
    assert result.exit_code == 1
    assert "not a label pool" in result.stderr
    assert cli("encode", pool, tmp_path / "int8", "--codec", "int8").exit_code == 0
    result = cli("encode", tmp_path / "int8", tmp_path / "out", "--codec", "int4")
    assert result.exit_code == 1
    assert "--from-lossy" in result.stderr
    assert (
        cli("encode", tmp_path / "int8", tmp_path / "out", "--codec", "int4", "--from-lossy").exit_code == 0
    )
