"""`verify`. What check_pool finds is tested in tests/lpld_labels/inspect/test_check.py."""

import json
from pathlib import Path

from tests.cli.build_runs import TEACHER, Cli, facts, passed
from tests.factories import make_batches, write_pool
from tests.lpld_core.image_folders import SIDE


def test_whole_and_damaged_pools(cli: Cli, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    write_pool(pool, make_batches(2, 3)).close()
    assert passed(cli("verify", pool)).stdout.startswith("whole: 5 files")
    assert facts(cli("verify", pool, "--json"))["whole"] is True
    for folder in ("views", "labels"):
        (file,) = (pool / folder).iterdir()
        file.write_bytes(b"damaged")
    found = cli("verify", pool, "--json")
    assert found.exit_code == 1
    assert found.stderr == ""
    assert {p["file"].split("/")[0] for p in json.loads(found.stdout)["problems"]} == {"views", "labels"}
    shown = cli("verify", pool)
    assert shown.exit_code == 1
    assert shown.stdout.count("damaged ") == 2
    assert "2 problems: 5 files" in shown.stdout


def test_names_are_no_markup(cli: Cli, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    write_pool(pool, make_batches(1, 2)).close()
    (pool / "labels" / "[red]x[").mkdir()
    (pool / "labels" / "[red]x[" / "bold]").write_text("?")
    done = cli("verify", pool, "--strict")
    assert done.exit_code == 1
    assert "[red]x[/bold]" in done.stdout
    assert "\n1 problem: " in done.stdout


def test_labels_are_compared_with_the_teachers(cli: Cli, built: Path, images: Path) -> None:
    words = ("verify", built, "--images", images)
    assert facts(cli(*words, *TEACHER, "--json"))["teacher"]["rows_above_tolerance"] == 0
    other = ("--teacher", "small-resnet10:width=9", "--teacher-weights", "random", "--size", SIDE)
    wrong = cli(*words, *other)
    assert wrong.exit_code == 1
    assert "small-resnet10:width=9" in wrong.stdout


def test_a_network_without_batchnorm_labels(images: Path, tmp_path: Path, cli: Cli) -> None:
    network = "tests.lpld_core.networks:tiny_net_without_batchnorm"
    teacher = ("--teacher", network, "--teacher-weights", "random", "--size", SIDE)
    pool = tmp_path / "pool"
    passed(cli("build", images, pool, *teacher, "--preset", "tiny", "--epochs", 1, "--batch-size", 9))
    found = facts(cli("verify", pool, "--images", images, *teacher, "--json"))
    assert found["teacher"]["largest_difference"] < 0.01
