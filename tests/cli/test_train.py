from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from lpld_core.networks.weights import read_weights
from lpld_core.train.trainer import Trainer
from tests.cli.build_runs import Cli, facts, one_line_error, passed
from tests.lpld_core.image_folders import NETWORK, SIDE, write_images

STUDENT = ("--student", NETWORK, "--threads", 1)


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def assert_same_weights(first: Path, second: Path) -> None:
    ours, theirs = (read_weights(run / "student.safetensors").tensors for run in (first, second))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


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
    assert re.search(r"loss [\d.e-]+, lr [\d.e-]+, top-1 [\d.]+%$", fifth)


def test_options_replace_the_presets(built: Path, images: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "run"
    options = ("--epochs", 1, "--loss", "mse+gt", "--optimizer", "sgd", "--lr", 0.01)
    normalisation = ("--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25")
    result = passed(cli("train", built, "--images", images, "--out", out, *STUDENT, *options, *normalisation))
    assert re.search(r"steps\W+3", result.stdout)
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


def test_lpqld_lets_temperatures_follow_the_epochs(
    built: Path, images: Path, tmp_path: Path, cli: Cli
) -> None:
    out = tmp_path / "run"
    options = ("--preset", "lpqld", "--epochs", 3, "--temperature-schedule", "cosine", "--ema", 0.9)
    passed(cli("train", built, "--images", images, "--out", out, *STUDENT, *options))
    log = log_of(out)
    assert [line["temperature"] for line in log] == pytest.approx([15.5, 6.5, 2])
    assert log[0]["student_temperature"] == 1
    assert 0.01 <= log[1]["student_temperature"] <= 1
    settings = settings_of(out)
    assert (settings["student_temperature"], settings["sampling"]) == ("calibrated", "shuffled")


def test_a_stopped_run_resumes_at_the_right_row(
    built: Path, images: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """27 rows an epoch in steps of 4: label batches of 9 are cut and joined."""
    options = ("--images", images, *STUDENT, "--epochs", 2, "--batch-size", 4)
    passed(cli("train", built, *options, "--out", tmp_path / "whole"))
    assert [(line["steps"], line["images"]) for line in log_of(tmp_path / "whole")] == [(7, 27), (7, 27)]
    monkeypatch.setattr("lpld_core.unfinished.SAVE_SECONDS", 0.0)
    step = Trainer._step
    taken: list[int] = []

    def fail_at_the_tenth(self: Trainer, *arguments: Any) -> Any:
        taken.append(1)
        if len(taken) == 10:
            raise KeyboardInterrupt
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", fail_at_the_tenth)
    stopped = cli("train", built, *options, "--out", tmp_path / "stopped")
    assert stopped.exit_code == 130
    assert "run the same command again" in stopped.stderr
    cache = ("--image-cache", tmp_path / "cache")
    resumed = facts(cli("train", built, *options, "--out", tmp_path / "stopped", *cache, "--json"))
    assert resumed["resumed_from_epoch"] == 1
    assert len(taken) == 10 + 14 - 9, "nine steps were kept"
    assert_same_weights(tmp_path / "stopped", tmp_path / "whole")


def test_overwrite_puts_another_student_in_place(built: Path, images: Path, tmp_path: Path, cli: Cli) -> None:
    run, fresh = tmp_path / "run", tmp_path / "fresh"
    words = ("train", built, "--images", images, *STUDENT, "--epochs", 1)
    for out, seed in ((run, 1), (fresh, 2)):
        passed(cli(*words, "--out", out, "--seed", seed))
    again = (*words, "--out", run, "--seed", 2)
    one_line_error(cli(*again), "'seed' differs", "--overwrite")
    passed(cli(*again, "--overwrite"))
    assert_same_weights(run, fresh)
    assert [line["epoch"] for line in log_of(run)] == [0], "nothing of the first run is left"
    (run / "checkpoint.safetensors").write_bytes(b"damaged")
    one_line_error(cli(*again), "checkpoint.safetensors", "not a weights file")


def test_folders_that_do_not_fit(built: Path, images: Path, tmp_path: Path, cli: Cli) -> None:
    words = ("train", built, "--out", tmp_path / "run", *STUDENT, "--epochs", 1)
    four = write_images(tmp_path / "four", classes=4, per_class=1)
    one_line_error(cli(*words, "--images", images, "--val", four), "4", "3 class folders")
    changed = shutil.copytree(images, tmp_path / "changed")
    Image.new("RGB", (SIDE, SIDE)).save(changed / "class0/000.png")
    one_line_error(cli(*words, "--images", changed), "class0/000.png", "has changed")
    renamed = write_images(tmp_path / "renamed", per_class=1)
    (renamed / "class1").rename(renamed / "other")
    by_order = (*words, "--images", images, "--val", renamed)
    one_line_error(cli(*by_order), "first at class 1 (expected class1, got class2)", "--val-by-order")
    assert not (tmp_path / "run").exists()
    passed(cli(*by_order, "--val-by-order"))
