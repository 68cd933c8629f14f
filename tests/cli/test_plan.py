"""``lpld-labels plan`` from the outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels import PoolReader
from tests.factories import make_batches, make_header, make_images, write_pool
from tests.lpld_labels.transforms.test_plan import labelled_pool

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "pool"
    labelled_pool(path, classes=60, batches=20).close()
    return path


def test_json(cli: Cli, pool: Path) -> None:
    result = cli("plan", pool, "--budget", "40kB", "--codec", "int8", "--codec", "int4", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["budget"] == 40_000
    assert {row["codec"] for row in facts["rows"]} == {"int8", "int4"}
    assert all(row["bytes"] <= 40_000 and row["ratio"] >= 1 for row in facts["rows"])
    assert [row for row in facts["rows"] if row["recommended"]] == [facts["recommended"]]
    assert facts["recommended"]["reason"]


def test_table_marks_the_recommended_row(cli: Cli, pool: Path) -> None:
    result = cli("plan", pool, "--budget", "60kB", "--codec", "int8", "--codec", "klt")
    assert result.exit_code == 0, result.output
    marked = [line for line in result.stdout.splitlines() if "->" in line]
    assert len(marked) == 2
    assert "views per image" in result.stdout or "every view" in result.stdout


def test_apply(cli: Cli, pool: Path, tmp_path: Path) -> None:
    arguments = ("plan", pool, "--budget", "50kB", "--codec", "int8", "--apply", tmp_path / "out", "--json")
    result = cli(*arguments)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    total = sum(file.stat().st_size for file in (tmp_path / "out").rglob("*") if file.is_file())
    assert facts["applied"]["bytes"] == total <= 50_000
    with PoolReader(tmp_path / "out") as out:
        assert out.manifest.codec.name == "int8"
        assert len(out) == facts["applied"]["batches"]
    again = cli(*arguments)
    assert json.loads(again.stdout)["applied"] == facts["applied"], "it finds its own pool"
    other = cli("plan", pool, "--budget", "60kB", "--codec", "int8", "--apply", tmp_path / "out")
    assert other.exit_code == 1
    assert "already here" in other.stderr


def test_a_budget_in_images(cli: Cli, pool: Path, tmp_path: Path) -> None:
    with PoolReader(pool) as reader:
        for path in reader.images.paths:
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(b"x" * 1000)
        images = len(reader.images)
    result = cli("plan", pool, "--budget", "0.8x-images", "--images", tmp_path, "--codec", "int8", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["budget"] == 800 * images
    missing = cli("plan", pool, "--budget", "1x-images", "--images", tmp_path / "elsewhere")
    assert missing.exit_code == 1
    assert "image is missing" in missing.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "1x-images"), "needs --images"),
        (("--budget", "0x-images"), "is not a size; write 300MB, 30K, 1 GiB"),
        (("--budget", "plenty"), "is not a size"),
        (("--budget", "1MB", "--min-fidelity", "1"), "0<x<1"),
        (("--budget", "1MB", "--temperature", "0"), "x>0"),
        ((), "--budget"),
    ],
)
def test_usage_errors(cli: Cli, pool: Path, arguments: tuple[str, ...], message: str) -> None:
    result = cli("plan", pool, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_budget_below_the_smallest_possible(cli: Cli, pool: Path, tmp_path: Path) -> None:
    result = cli("plan", pool, "--budget", "1kB", "--codec", "int8", "--apply", tmp_path / "out")
    assert result.exit_code == 1
    assert "too small for even one batch" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_pool_of_incomplete_batches_can_be_planned(cli: Cli, tmp_path: Path) -> None:
    """It was priced as if they were full, and nothing was found to prune."""
    batches = make_batches(6, 2, rows=30, classes=200)
    write_pool(
        tmp_path / "pool", batches, header=make_header(200, 128), images=make_images(classes=200)
    ).close()
    size = sum(file.stat().st_size for file in (tmp_path / "pool").rglob("*") if file.is_file())
    whole = cli("plan", tmp_path / "pool", "--budget", size + 3000, "--codec", "f16", "--json")
    assert whole.exit_code == 0, whole.output
    row = json.loads(whole.stdout)["recommended"]
    assert (row["whole"], row["rows"]) == (True, 360)
    assert abs(row["bytes"] - size) < 0.2 * size
    arguments = ("--budget", size // 2, "--codec", "f16", "--apply", tmp_path / "out")
    pruned = cli("plan", tmp_path / "pool", *arguments)
    assert pruned.exit_code == 0, pruned.output
    written = sum(file.stat().st_size for file in (tmp_path / "out").rglob("*") if file.is_file())
    assert size / 5 < written <= size // 2
    with PoolReader(tmp_path / "out") as reader:
        assert 1 <= len(reader) < 12
