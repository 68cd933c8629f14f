from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from PIL import Image

from lpld_core.networks.weights import read_weights
from lpld_core.train.settings import TrainSettings
from lpld_core.train.student import train_student
from lpld_core.train.trainer import Trainer
from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError
from tests.cli.build_runs import one_line_error
from tests.lpld_core.image_folders import NETWORK, SIDE, write_images

Cli = Callable[..., Result]
STUDENT = ("--student", NETWORK, "--threads", 1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "folder")


@pytest.fixture
def pool(images: Path, tmp_path: Path, cli: Cli) -> Path:
    teacher = ("--teacher", NETWORK, "--teacher-weights", "random", "--size", SIDE, "--threads", 1)
    result = cli("build", images, tmp_path / "pool", *teacher, "--epochs", 2, "--batch-size", 9)
    assert result.exit_code == 0, result.output
    return tmp_path / "pool"


def test_train_writes_a_student_and_a_log(pool: Path, images: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "run"
    options = ("--images", images, "--val", images, "--out", out, *STUDENT, "--preset", "tiny")
    result = cli("train", pool, *options, "--epochs", 3, "--evaluate-every", 1, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    facts = json.loads(result.stdout)
    assert facts["steps"] == 9
    assert 0 <= facts["top1"] <= facts["top5"] == 1
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in log] == [0, 1, 2]
    assert log[-1]["top1"] == facts["top1"]
    settings = read_weights(out / "checkpoint.safetensors").about["settings"]
    assert (settings["optimizer"], settings["scale_by_t2"], settings["learning_rate"]) == ("sgd", True, 0.2)
    assert settings["sampling"] == "batches"


def test_lines_say_how_it_is_doing(
    pool: Path, images: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpld_cli.progress.SECONDS_BETWEEN_LINES", 0.0)
    options = ("--images", images, "--val", images, "--out", tmp_path / "run", *STUDENT, "--epochs", 2)
    result = cli("train", pool, *options, "--evaluate-every", 1)
    assert result.exit_code == 0, result.output
    # Where beginning takes long, a line says so.
    lines = [line for line in result.stderr.splitlines() if re.search(r"training steps.* \d/6", line)]
    # The clock may repeat a line.
    second, fifth = (next(line for line in lines if f" {step}/6 " in line) for step in (2, 5))
    assert re.search(r"loss [\d.e-]+, lr [\d.e-]+$", second)
    assert re.search(r"loss [\d.e-]+, lr [\d.e-]+, top-1 [\d.]+%$", fifth)


def test_options_replace_the_presets(pool: Path, images: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "run"
    options = ("--epochs", 1, "--loss", "mse+gt", "--optimizer", "sgd", "--lr", 0.01)
    result = cli("train", pool, "--images", images, "--out", out, *STUDENT, *options)
    assert result.exit_code == 0, result.output
    assert re.search(r"steps\W+3", result.stdout)
    settings = read_weights(out / "checkpoint.safetensors").about["settings"]
    assert (settings["loss"], settings["optimizer"], settings["learning_rate"]) == ("mse+gt", "sgd", 0.01)
    assert settings["sampling"] == "shuffled"


def test_a_batch_size_of_ones_own_goes_on_at_the_right_row(
    pool: Path, images: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """27 rows an epoch in steps of 4: label batches of 9 are cut and joined."""
    options = ("--images", images, *STUDENT, "--epochs", 2, "--batch-size", 4)
    assert cli("train", pool, *options, "--out", tmp_path / "whole").exit_code == 0
    log = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert [(line["steps"], line["images"]) for line in log] == [(7, 27), (7, 27)]
    monkeypatch.setattr("lpld_core.unfinished.SAVE_SECONDS", 0.0)
    step = Trainer._step
    taken: list[int] = []

    def fail_at_the_tenth(self: Trainer, *arguments: Any) -> Any:
        taken.append(1)
        if len(taken) == 10:
            raise KeyboardInterrupt
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", fail_at_the_tenth)
    assert cli("train", pool, *options, "--out", tmp_path / "stopped").exit_code != 0
    again = cli("train", pool, *options, "--out", tmp_path / "stopped")
    assert again.exit_code == 0, again.output
    assert len(taken) == 10 + 14 - 9, "nine steps were kept"
    whole, stopped = (read_weights(tmp_path / name / "student.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(stopped.tensors[name], value) for name, value in whole.tensors.items())


def test_overwrite_puts_another_student_in_place(pool: Path, images: Path, tmp_path: Path, cli: Cli) -> None:
    options = ("--images", images, *STUDENT, "--epochs", 1)
    for out, seed in (("run", 1), ("fresh", 2)):
        assert cli("train", pool, *options, "--out", tmp_path / out, "--seed", seed).exit_code == 0
    one_line_error(
        cli("train", pool, *options, "--out", tmp_path / "run", "--seed", 2), "'seed' differs", "--overwrite"
    )
    result = cli("train", pool, *options, "--out", tmp_path / "run", "--seed", 2, "--overwrite")
    assert result.exit_code == 0, result.output
    made, fresh = (read_weights(tmp_path / name / "student.safetensors") for name in ("run", "fresh"))
    assert all(torch.equal(made.tensors[name], value) for name, value in fresh.tensors.items())
    log = [json.loads(line)["epoch"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert log == [0], "nothing of the first run is left"


def test_lpqld_lets_temperatures_follow_the_epochs(
    pool: Path, images: Path, tmp_path: Path, cli: Cli
) -> None:
    out = tmp_path / "run"
    options = ("--preset", "lpqld", "--epochs", 3, "--temperature-schedule", "cosine", "--ema", 0.9)
    result = cli("train", pool, "--images", images, "--out", out, *STUDENT, *options)
    assert result.exit_code == 0, result.output
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["temperature"] for line in log] == pytest.approx([15.5, 6.5, 2])
    assert log[0]["student_temperature"] == 1
    assert 0.01 <= log[1]["student_temperature"] <= 1
    settings = read_weights(out / "checkpoint.safetensors").about["settings"]
    assert (settings["student_temperature"], settings["sampling"]) == ("calibrated", "shuffled")


def test_a_normalisation_can_be_given(pool: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = TrainSettings(student=NETWORK, epochs=1, mean=(0.5,) * 3, std=(0.25,) * 3)
    with PoolReader(pool) as reader:
        train_student(reader, images, out, settings)
        about = read_weights(out / "student.safetensors").about
        assert about["preprocessing"]["mean"] == [0.5, 0.5, 0.5]
        with pytest.raises(InvalidArgumentError, match=r"normalisation.*give both"):
            train_student(reader, images, out, replace(settings, std=None))


def test_a_run_goes_on_to_the_same_weights(
    pool: Path, images: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lpld_core.train.run_directory import TrainingRun

    options = ("--images", images, *STUDENT, "--epochs", 4)
    assert cli("train", pool, *options, "--out", tmp_path / "whole").exit_code == 0
    log = TrainingRun.log

    def interrupted(self: TrainingRun, record: dict[str, object]) -> None:
        log(self, record)
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "log", interrupted)
        stopped = cli("train", pool, *options, "--out", tmp_path / "broken")
    assert stopped.exit_code == 130
    assert "run the same command again" in stopped.stderr
    cache = ("--image-cache", tmp_path / "cache")
    resumed = cli("train", pool, *options, "--out", tmp_path / "broken", *cache, "--json")
    assert json.loads(resumed.stdout)["resumed_from_epoch"] == 2
    ours, theirs = (read_weights(tmp_path / run / "student.safetensors") for run in ("broken", "whole"))
    assert all(torch.equal(ours.tensors[name], tensor) for name, tensor in theirs.tensors.items())


def test_bad_input_is_one_line(pool: Path, images: Path, tmp_path: Path, cli: Cli) -> None:
    options = ("--out", tmp_path / "run", *STUDENT, "--epochs", 1)
    one_line_error(cli("train", tmp_path / "no", "--images", images, *options), "not a label pool")
    one_line_error(cli("train", pool, "--images", tmp_path / "no", *options), "does not exist")
    one_line_error(
        cli("train", pool, "--images", images, "--val", tmp_path / "no", *options), "does not exist"
    )
    four = write_images(tmp_path / "four", classes=4, per_class=1)
    one_line_error(cli("train", pool, "--images", images, "--val", four, *options), "4", "3 class folders")
    one_line_error(cli("train", pool, "--images", images, *options, "--student", "resnet81"), "resnet81")
    renamed = write_images(tmp_path / "renamed", per_class=1)
    (renamed / "class1").rename(renamed / "other")
    other = cli("train", pool, "--images", images, "--val", renamed, *options)
    one_line_error(other, "first class 1 (expected class1, got class2)", "--val-by-order")
    one_line_error(cli("train", pool, "--images", images, *options, "--val-by-order"), "--val", code=2)
    assert not (tmp_path / "run").exists()
    meant = cli("train", pool, "--images", images, "--val", renamed, "--val-by-order", *options)
    assert meant.exit_code == 0, meant.output
    one_line_error(cli("train", pool, "--images", images, *options, "--loss", "hinge"), "hinge", code=2)
    one_line_error(
        cli("train", pool, "--images", images, *options, "--temperature", 0), "temperature", code=2
    )
    one_line_error(cli("train", pool), "--images")


def test_changed_images_are_named(pool: Path, tmp_path: Path, cli: Cli) -> None:
    folder = write_images(tmp_path / "copy")
    Image.new("RGB", (SIDE, SIDE)).save(folder / "class0/000.png")
    result = cli("train", pool, "--images", folder, "--out", tmp_path / "run", *STUDENT, "--epochs", 1)
    one_line_error(result, "class0/000.png", "has changed")


def test_a_checkpoint_that_is_damaged_is_refused(pool: Path, images: Path, tmp_path: Path, cli: Cli) -> None:
    options = ("--images", images, "--out", tmp_path / "run", *STUDENT, "--epochs", 1)
    assert cli("train", pool, *options).exit_code == 0
    (tmp_path / "run/checkpoint.safetensors").write_bytes(b"damaged")
    one_line_error(cli("train", pool, *options), "checkpoint.safetensors", "not a weights file")
    one_line_error(cli("train", pool, *options[:-1], 2, "--seed", 1), "checkpoint.safetensors")
