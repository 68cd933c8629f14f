import json
import re
from pathlib import Path
from typing import Any

import pytest

from lpld_core.networks.weights import read_weights
from tests.cli.build_runs import Cli, facts, one_line_error, passed
from tests.lpld_core.image_folders import NETWORK, write_images

STUDENT = ("--student", NETWORK, "--threads", 1)


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def settings_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_weights(run / "checkpoint.safetensors").about["settings"]
    return found


def test_train_writes_a_student_and_a_log(
    built: Path, images: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr("lpld_cli.progress.SECONDS_BETWEEN_LINES", 0.0)
    options = ("--images", images, "--val", images, "--out", out, *STUDENT, "--preset", "tiny")
    result = cli("train", built, *options, "--epochs", 3, "--evaluate-every", 1, "--json")
    found = facts(result)
    assert found["steps"] == 9
    assert 0 <= found["top1"] <= found["top5"] == 1
    log = log_of(out)
    assert [line["epoch"] for line in log] == [0, 1, 2]
    assert log[-1]["top1"] == found["top1"]
    settings = settings_of(out)
    assert (settings["optimizer"], settings["scale_by_t2"], settings["learning_rate"]) == ("sgd", True, 0.2)
    assert settings["sampling"] == "batches"
    # The clock may repeat a line.
    lines = [line for line in result.stderr.splitlines() if line.startswith("training steps")]
    second, fifth = (next(line for line in lines if f" {step}/9 " in line) for step in (2, 5))
    assert re.search(r"loss [\d.e-]+, lr [\d.e-]+$", second)
    assert re.search(r"loss [\d.e-]+, lr [\d.e-]+, top-1 [\d.]+% \(epoch 1\)$", fifth)


def test_options_replace_the_presets(built: Path, images: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "run"
    options = ("--epochs", 1, "--loss", "mse+gt", "--optimizer", "sgd", "--lr", 0.01)
    normalisation = ("--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25")
    given = (*options, *normalisation, "--image-cache", tmp_path / "cache")
    result = passed(cli("train", built, "--images", images, "--out", out, *STUDENT, *given))
    assert re.search(r"steps\W+3", result.stdout)
    assert any((tmp_path / "cache").iterdir())
    settings = settings_of(out)
    assert (settings["loss"], settings["optimizer"], settings["learning_rate"]) == ("mse+gt", "sgd", 0.01)
    assert settings["sampling"] == "shuffled"
    about = read_weights(out / "student.safetensors").about
    assert about["preprocessing"]["mean"] == [0.5, 0.5, 0.5]


def test_phases_set_the_number_of_epochs(built: Path, images: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "run"
    options = ("--preset", "hald", "--phases", "soft:1,hard:2", "--hard-smoothing", 0.2)
    passed(cli("train", built, "--images", images, "--out", out, *STUDENT, *options))
    assert [line["labels"] for line in log_of(out)] == ["soft", "hard", "hard"]
    settings = settings_of(out)
    assert (settings["hard_smoothing"], settings["schedule"]) == (0.2, "smoothed-cosine")


def test_classes_are_known_by_name_or_order(built: Path, images: Path, tmp_path: Path, cli: Cli) -> None:
    words = ("train", built, "--out", tmp_path / "run", *STUDENT, "--epochs", 1)
    renamed = write_images(tmp_path / "renamed", per_class=1)
    (renamed / "class1").rename(renamed / "other")
    by_order = (*words, "--images", images, "--val", renamed)
    one_line_error(cli(*by_order), "first at class 1 (expected class1, got class2)", "--val-by-order")
    assert not (tmp_path / "run").exists()
    passed(cli(*by_order, "--val-by-order"))
