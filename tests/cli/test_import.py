"""``lpld-labels import`` from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

from lpld_core.teachers.teacher import load_teacher
from lpld_labels import PoolReader
from tests.lpld_labels.interop.label_folders import CLASSES, write_epochs, write_images
from tests.lpld_labels.interop.restated import SMALL, label_again, small_teacher

Cli = Callable[..., Result]
MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.2)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    write_images(tmp_path / "images")
    write_epochs(tmp_path / "labels", ids_file=True)
    return tmp_path


def test_import_reports_as_json(cli: Cli, made: Path) -> None:
    done = cli("import", made / "labels", made / "pool", "--images", made / "images", "--json")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["format"], report["batches"], report["rows"], report["epochs"]) == ("lpld", 9, 60, 3)
    assert report["holes"] == []
    with PoolReader(made / "pool") as pool:
        assert report["content_digest"] == pool.manifest.content_digest


def test_the_table_is_for_people(cli: Cli, made: Path) -> None:
    os.truncate(made / "labels" / "epoch_1" / "batch_0.tar", 9)
    words = ("import", made / "labels", made / "pool", "--images", made / "images")
    done = cli(*words, "--skip-bad", "--teacher", "resnet18", "--mean", "0.5,0.5,0.5", "--std", "0.2,0.2,0.2")
    assert done.exit_code == 0, done.stderr
    for text in ("lpld", "epochs", "assumed", "32 x 32", "holes", "epoch_1/batch_0.tar: "):
        assert text in done.stdout
    with PoolReader(made / "pool") as pool:
        (teacher,) = pool.header.teachers
    assert (teacher.name, teacher.mean, teacher.std) == ("resnet18", (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: os.truncate(p, 40), "not a whole file of torch.save"),
        (lambda p: p.unlink(), "label files are missing"),
        (lambda p: torch.save(os.system, p), "pickle asks for 'posix.system'"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, made: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(made / "labels" / "epoch_1" / "batch_1.tar")
    done = cli("import", made / "labels", made / "pool", "--images", made / "images")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert "epoch_1/batch_1.tar" in done.stderr


def test_wrong_folders(cli: Cli, made: Path) -> None:
    for source, images, message in (
        ("nowhere", "images", "label folder does not exist"),
        ("images", "images", "no label files of a known layout"),
        ("labels", "nowhere", "image folder does not exist"),
        ("labels", "labels", "holds no images"),
    ):
        done = cli("import", made / source, made / "pool", "--images", made / images)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert message in done.stderr
    assert not (made / "pool").exists()


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--images", "x", "--format", "tar"],
        ["--images", "x", "--torch-era", "2.0"],
        ["--images", "x", "--jobs", "0"],
        ["--images", "x", "--mean", "1,2"],
        ["--images", "x", "--classes", "1"],
        ["--images", "x", "--ensemble", "median"],
        ["--images", "x", "--temperature", "0"],
    ],
)
def test_usage_errors(cli: Cli, made: Path, options: list[str]) -> None:
    done = cli("import", made / "labels", made / "pool", *options)
    assert done.exit_code == 2
    assert not (made / "pool").exists()


def test_an_ensemble_is_imported_and_confirmed_by_all_its_teachers(cli: Cli, tmp_path: Path) -> None:
    """G-VBSM, labelled by two networks; verify takes as many teachers as the folder had."""
    images = write_images(tmp_path / "images")
    source = write_epochs(tmp_path / "labels", epochs=1, ids_in_batch=True)
    teacher = load_teacher(SMALL, weights="random", classes=CLASSES, input_size=(32, 32), mean=MEAN, std=STD)
    other = small_teacher(CLASSES, mean=MEAN, std=STD, seed=5)
    weights = tmp_path / "other.pt"
    torch.save(other.model.state_dict(), weights)
    label_again(source, images, [teacher, other], side=32)
    values = ("--mean", ",".join(map(str, MEAN)), "--std", ",".join(map(str, STD)))
    asked = cli("import", source, tmp_path / "pool", "--images", images, *values)
    assert (asked.exit_code, asked.stderr.count("\n")) == (1, 1)
    assert "--ensemble" in asked.stderr
    done = cli("import", source, tmp_path / "pool", "--images", images, *values, "--ensemble", "average")
    assert done.exit_code == 0, done.stderr
    both = (
        "--teacher",
        SMALL,
        "--teacher-weights",
        "random",
        "--teacher",
        SMALL,
        "--teacher-weights",
        weights,
    )
    checked = cli("verify", tmp_path / "pool", "--images", images, *both, *values, "--size", 32)
    assert checked.exit_code == 0, checked.stdout + checked.stderr
    assert "true: 20 rows" in checked.stdout
    one = cli("verify", tmp_path / "pool", "--images", images, *both[:4], *values, "--size", 32)
    assert one.exit_code == 1


def test_no_torch_is_imported(made: Path) -> None:
    """Nor any other way to run a pickle: the standard library's loaders are not called."""
    arguments = ["import", str(made / "labels"), str(made / "pool"), "--images", str(made / "images")]
    code = f"""
import pickle, sys
def never(*arguments, **options):
    raise RuntimeError("a pickle was loaded")
pickle.load = pickle.loads = never
sys.modules["torch"] = None
sys.argv = ["lpld-labels", *{arguments!r}]
from importlib.metadata import entry_points
(script,) = entry_points(group="console_scripts", name="lpld-labels")
script.load()()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (made / "pool" / "pool.json").exists()


def test_help_teaches(cli: Cli) -> None:
    done = cli("import", "--help")
    assert done.exit_code == 0
    for text in ("--torch-era", "--skip-bad", "Examples:", "sre2l", "verify pool"):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mean", "1,1,1", "--std", "0,0,0"), "std is wrong"),
        (("--output-size", 99_999_999), "--output-size"),
        (("--teacher", "a\udcff"), "a\\udcff"),
    ],
)
def test_what_no_pool_can_say_is_one_line(cli: Cli, made: Path, words: tuple[object, ...], said: str) -> None:
    done = cli("import", made / "labels", made / "pool", "--images", made / "images", *words)
    assert done.exit_code != 0
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (made / "pool").exists()
