from pathlib import Path

import pytest

from lpld_labels import PoolReader
from tests.cli.build_runs import Cli, facts, one_line_error, passed
from tests.lpld_labels.transforms.test_plan import labelled_pool


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "pool"
    labelled_pool(path, classes=60, batches=20).close()
    return path


def bytes_of(pool: Path) -> int:
    return sum(file.stat().st_size for file in pool.rglob("*") if file.is_file())


def test_rows_fit_and_one_is_recommended(cli: Cli, pool: Path) -> None:
    words = ("plan", pool, "--budget", "40kB", "--codec", "int8", "--codec", "int4")
    found = facts(cli(*words, "--json"))
    assert found["budget"] == 40_000
    assert {row["codec"] for row in found["rows"]} == {"int8", "int4"}
    assert all(row["bytes"] <= 40_000 and row["ratio"] >= 1 for row in found["rows"])
    assert [row for row in found["rows"] if row["recommended"]] == [found["recommended"]]
    assert found["recommended"]["reason"]
    shown = passed(cli(*words)).stdout
    assert len([line for line in shown.splitlines() if "->" in line]) == 2
    assert "views per image" in shown or "every view" in shown


def test_a_fitted_codec_shows_what_was_asked_and_what_it_reaches(cli: Cli, pool: Path) -> None:
    words = ("plan", pool, "--budget", "40kB", "--codec", "klt", "--min-fidelity", 0.9, "--temperature", 2)
    chosen = facts(cli(*words, "--json"))["recommended"]
    shown = " ".join(passed(cli(*words)).stdout.split())
    assert f"(asked {chosen['fidelity_asked']:g}, reached {chosen['kept']['2']:.4f}): " in shown


def test_apply(cli: Cli, pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("plan", pool, "--budget", "50kB", "--codec", "int8", "--apply", out, "--json")
    found = facts(cli(*arguments))
    assert found["applied"]["bytes"] == bytes_of(out) <= 50_000
    with PoolReader(out) as made:
        assert made.manifest.codec.name == "int8"
        assert len(made) == found["applied"]["batches"]
    assert facts(cli(*arguments))["applied"] == found["applied"], "it finds its own pool"
    one_line_error(cli("plan", pool, "--budget", "60kB", "--codec", "int8", "--apply", out), "already here")


def test_a_budget_in_images(cli: Cli, pool: Path, tmp_path: Path) -> None:
    with PoolReader(pool) as reader:
        for path in reader.images.paths:
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(b"x" * 1000)
        images = len(reader.images)
    words = ("plan", pool, "--budget", "0.8x-images", "--images", tmp_path, "--codec", "int8", "--json")
    assert facts(cli(*words))["budget"] == 800 * images
