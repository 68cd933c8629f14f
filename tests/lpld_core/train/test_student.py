from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from lpld_core.networks.models import SmallResNet, seeded
from lpld_core.networks.weights import read_weights
from lpld_core.relabel.build import build_pool
from lpld_core.settings import TeacherChoice, ViewSettings
from lpld_core.teachers.teacher import load_teacher
from lpld_core.train.evaluate import ValidationSet
from lpld_core.train.settings import StudentTemperature, TrainSettings
from lpld_core.train.student import epoch_steps, train_student
from lpld_core.train.train_teacher import TeacherJob, train_teacher
from lpld_core.train.trainer import Trainer, TrainingBatch
from lpld_labels.errors import (
    ComputationError,
    ImageMismatchError,
    InvalidArgumentError,
    PoolConflictError,
)
from lpld_labels.pool.reader import PoolReader
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.settings import PruneSettings
from tests.lpld_core.image_folders import NETWORK, SIDE, SMALL_BUILD, write_images

SETTINGS = TrainSettings(epochs=4, learning_rate=0.01, student=NETWORK, evaluate_every=2)
GREY = replace(SETTINGS, mean=(0.5,) * 3, std=(0.5,) * 3, seed=1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "folder")


@pytest.fixture(scope="module")
def pool_path(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pools") / "pool"
    choice = TeacherChoice(name=NETWORK, weights="random", input_size=(SIDE, SIDE))
    settings = replace(SMALL_BUILD, epochs=3, teachers=(choice,))
    build_pool(images, path, settings)
    return path


def test_a_student_learns_and_is_written_down(pool_path: Path, images: Path, tmp_path: Path) -> None:
    validation = ValidationSet(images, size=(SIDE, SIDE))
    seen: list[tuple[int, int]] = []
    with PoolReader(pool_path) as pool:
        result = train_student(
            pool,
            images,
            tmp_path / "run",
            SETTINGS,
            validation=validation,
            progress=lambda done, total: seen.append((done, total)),
        )
    assert seen[-1] == (24, 24)
    assert result.steps == 24
    log = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in log] == [0, 1, 2, 3]
    assert log[-1]["loss"] < log[0]["loss"]
    assert [record["top1"] is None for record in log] == [True, False, True, False]
    assert result.accuracy is not None
    assert log[-1]["top1"] == result.accuracy.top1
    student = load_teacher(NETWORK, weights=result.weights)
    assert student.input_size == (SIDE, SIDE)
    assert validation.accuracy(student.model, student.mean, student.std) == result.accuracy


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        replace(SETTINGS, optimizer="sgd", rate_steps="step", decay_on="all"),
        replace(
            SETTINGS,
            temperature=0.01,  # sharp labels, so that the student's temperature moves
            student_temperature="calibrated",
            ema=0.9,
        ),
    ],
    ids=["adamw", "sgd", "lpqld"],
)
def test_resuming_ends_with_the_same_weights(
    pool_path: Path, images: Path, tmp_path: Path, settings: TrainSettings
) -> None:
    with PoolReader(pool_path) as pool:
        whole = train_student(pool, images, tmp_path / "whole", settings)

        def interrupt(done: int, total: int) -> None:
            if done == total // 2 + 3:
                raise KeyboardInterrupt

        broken = tmp_path / "broken"
        with pytest.raises(KeyboardInterrupt):
            train_student(pool, images, broken, settings, progress=interrupt)
        resumed = train_student(pool, images, broken, replace(settings, workers=2))
        assert (whole.resumed_from, resumed.resumed_from) == (0, 2)
        ours, theirs = read_weights(resumed.weights), read_weights(whole.weights)
        for name, tensor in theirs.tensors.items():
            assert torch.equal(ours.tensors[name], tensor), name
        state, other = (
            read_weights(tmp_path / run / "checkpoint.safetensors") for run in ("whole", "broken")
        )
        assert state.tensors.keys() == other.tensors.keys()
        assert any(name.startswith("optimizer.") for name in state.tensors)
        assert all(torch.equal(other.tensors[name], tensor) for name, tensor in state.tensors.items())
        logs = [(tmp_path / run / "log.jsonl").read_text().splitlines() for run in ("whole", "broken")]
        losses = [[json.loads(line)["loss"] for line in log] for log in logs]
        assert losses[0] == losses[1]
        if settings.student_temperature == "calibrated":
            assert json.loads(logs[0][2])["student_temperature"] < 1
        again = train_student(pool, images, broken, settings)
        assert again.resumed_from == 4


def test_dropout_resumes_too(tmp_path: Path) -> None:
    def trainer() -> Trainer:
        with seeded(0):
            model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(48, 3))
        return Trainer(model, replace(GREY, ema=0.9))

    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 3, 4, 4), dtype=np.uint8))
    batches = [TrainingBatch(pixels, lambda output, rows: output.square().mean())] * 3
    straight, first = trainer(), trainer()
    for epoch in range(2):
        straight.run_epoch(epoch, batches, steps=3)
    first.run_epoch(0, batches, steps=3)
    second = trainer()
    second.load_state(first.state())
    torch.rand(5)  # the global generator's state must not matter
    second.run_epoch(1, batches, steps=3)
    for name, tensor in straight.state().items():
        assert torch.equal(second.state()[name], tensor), name


def test_another_runs_directory_is_respected(pool_path: Path, images: Path, tmp_path: Path) -> None:
    with PoolReader(pool_path) as pool:
        train_student(pool, images, tmp_path / "run", replace(SETTINGS, epochs=1))
        with pytest.raises(PoolConflictError, match="'temperature' differs"):
            train_student(pool, images, tmp_path / "run", replace(SETTINGS, epochs=1, temperature=4.0))


def test_changed_images_are_refused_before_the_first_step(
    pool_path: Path, images: Path, tmp_path: Path
) -> None:
    folder = write_images(tmp_path / "folder")
    changed = folder / "class2/001.png"
    Image.new("RGB", (SIDE + 1, SIDE + 1)).save(changed)
    with PoolReader(pool_path) as pool, pytest.raises(ImageMismatchError, match=r"class2/001\.png"):
        train_student(pool, folder, tmp_path / "run", SETTINGS)
    assert not (tmp_path / "run").exists()


def test_settings_that_cannot_work_are_refused(pool_path: Path, images: Path, tmp_path: Path) -> None:
    four = write_images(tmp_path / "four", classes=4, per_class=1)
    with PoolReader(pool_path) as pool:
        with pytest.raises(InvalidArgumentError, match="number of classes"):
            train_student(
                pool, images, tmp_path / "a", SETTINGS, validation=ValidationSet(four, size=(SIDE, SIDE))
            )
        with pytest.raises(ComputationError, match="training diverged"):
            train_student(pool, images, tmp_path / "b", replace(SETTINGS, learning_rate=1e30, epochs=3))


def test_mse_and_ground_truth_trains(pool_path: Path, images: Path, tmp_path: Path) -> None:
    with PoolReader(pool_path) as pool:
        settings = replace(SETTINGS, loss="mse+gt", warmup_epochs=1.0)
        train_student(pool, images, tmp_path / "run", settings)
    log = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert log[-1]["loss"] < log[0]["loss"]


def test_a_pruned_epoch_has_as_many_steps_as_complete_batches(
    pool_path: Path, images: Path, tmp_path: Path
) -> None:
    with PoolReader(pool_path) as pool:
        assert epoch_steps(pool) == 6
        prune_pool(pool, tmp_path / "pruned", PruneSettings(ratio=3))
    with PoolReader(tmp_path / "pruned") as pool:
        assert epoch_steps(pool) == 5
        result = train_student(pool, images, tmp_path / "run", replace(SETTINGS, epochs=1))
    assert result.steps == 5


def test_an_averaged_student_is_what_is_kept(pool_path: Path, images: Path, tmp_path: Path) -> None:
    with PoolReader(pool_path) as pool:
        result = train_student(pool, images, tmp_path / "run", replace(SETTINGS, ema=0.9))
    saved = read_weights(result.weights).tensors
    state = read_weights(tmp_path / "run/checkpoint.safetensors").tensors
    assert all(torch.equal(saved[name], state[f"average.{name}"]) for name in saved)
    assert not torch.equal(saved["conv1.weight"], state["model.conv1.weight"])


def test_a_teacher_trained_on_a_folder_knows_it(images: Path, tmp_path: Path) -> None:
    job = TeacherJob(
        out=tmp_path / "teacher.safetensors",
        network=NETWORK,
        size=(SIDE, SIDE),
        views=ViewSettings(batch_size=9, crop_scale=(0.5, 1.0)),
        recipe=TrainSettings(epochs=6, learning_rate=0.01),
    )
    validation = ValidationSet(images, size=(SIDE, SIDE))
    accuracy = train_teacher(images, job, validation=validation)
    assert accuracy is not None
    assert accuracy.top1 > 0.9
    teacher = load_teacher(NETWORK, weights=job.out, classes=3)
    assert teacher.input_size == (SIDE, SIDE)
    assert validation.accuracy(teacher.model, teacher.mean, teacher.std) == accuracy


def test_narrow_networks_are_not_trained_channels_last() -> None:
    """The strided 1x1 shortcut of width 4 corrupts memory in channels-last (see trainer.py)."""

    def channels_last(width: int) -> bool:
        model = SmallResNet(classes=3, depth=10, width=width)
        Trainer(model, GREY)
        return model.conv1.weight.is_contiguous(memory_format=torch.channels_last)

    assert channels_last(16)
    assert not channels_last(4)


@pytest.mark.parametrize("temperature", ["teacher", "calibrated"])
def test_stopped_within_an_epoch_a_student_goes_on_there(
    pool_path: Path,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    temperature: StudentTemperature,
    reused: list[str],
) -> None:
    settings = replace(SETTINGS, epochs=2, temperature=0.02, rate_steps="step")
    settings = replace(settings, student_temperature=temperature)
    with PoolReader(pool_path) as pool:
        whole = train_student(pool, images, tmp_path / "whole", settings)
        monkeypatch.setattr("lpld_core.unfinished.SAVE_SECONDS", 0.0)
        # Six steps an epoch.
        for moment in (2, 5, 6, 9):
            seen: list[int] = []

            def stop(done: int, total: int, seen: list[int] = seen, moment: int = moment) -> None:
                seen.append(done)
                if len(seen) == moment:
                    raise KeyboardInterrupt

            out = tmp_path / f"cut{moment}"
            with pytest.raises(KeyboardInterrupt):
                train_student(pool, images, out, settings, progress=stop)
            again = train_student(pool, images, out, settings, progress=stop)
            # Only the last step of an epoch is not saved until the epoch is done.
            epochs, steps = divmod(moment - (moment % 6 == 0), 6)
            assert reused == [f"{again.weights}: resumes after {epochs} epochs and {steps} steps"]
            reused.clear()
            assert len(seen) == (13 if moment % 6 == 0 else 12)
            assert again.steps == whole.steps
            ours, theirs = read_weights(again.weights).tensors, read_weights(whole.weights).tensors
            assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
            logs = [(run / "log.jsonl").read_text().splitlines() for run in (tmp_path / "whole", out)]
            losses = [[json.loads(line)["loss"] for line in log] for log in logs]
            assert losses[0] == losses[1]
            assert not (out / ".unfinished").exists()


def test_a_torn_line_of_the_log_is_forgotten(pool_path: Path, images: Path, tmp_path: Path) -> None:
    with PoolReader(pool_path) as pool:
        train_student(pool, images, tmp_path / "run", SETTINGS)
        with (tmp_path / "run" / "log.jsonl").open("a") as log:
            log.write('{"epoch": 4, "lo')
        assert train_student(pool, images, tmp_path / "run", SETTINGS).steps == 24


def test_stopped_anywhere_a_teacher_goes_on_there(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job(name: str) -> TeacherJob:
        views, recipe = ViewSettings(batch_size=9), TrainSettings(epochs=2, learning_rate=0.01)
        return TeacherJob(
            out=tmp_path / f"{name}.safetensors",
            network=NETWORK,
            size=(SIDE, SIDE),
            views=views,
            recipe=recipe,
        )

    train_teacher(images, job("whole"))
    whole = (tmp_path / "whole.safetensors").read_bytes()
    monkeypatch.setattr("lpld_core.unfinished.SAVE_SECONDS", 0.0)
    for moment in (1, 3, 4):
        seen: list[int] = []

        def stop(done: int, total: int, seen: list[int] = seen, moment: int = moment) -> None:
            seen.append(done)
            if len(seen) == moment:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_teacher(images, job(f"cut{moment}"), progress=stop)
        train_teacher(images, job(f"cut{moment}"), progress=stop)
        # Three steps an epoch; the last of one is not saved until the epoch is done.
        assert len(seen) == (7 if moment == 3 else 6)
        assert (tmp_path / f"cut{moment}.safetensors").read_bytes() == whole
        assert not (tmp_path / f"cut{moment}.safetensors.unfinished").exists()
        train_teacher(images, job(f"cut{moment}"), progress=stop)
        assert len(seen) == (7 if moment == 3 else 6)


def test_validation_classes_are_known_by_their_names(pool_path: Path, images: Path, tmp_path: Path) -> None:
    other = write_images(tmp_path / "other", per_class=2)
    (other / "class0").rename(other / "zebra")
    once = replace(SETTINGS, epochs=1)
    with PoolReader(pool_path) as pool:
        both = r"first class 0 .expected class0, got class1.*by-order"
        with pytest.raises(InvalidArgumentError, match=both):
            train_student(
                pool, images, tmp_path / "a", once, validation=ValidationSet(other, size=(SIDE, SIDE))
            )
        assert not (tmp_path / "a").exists()
        meant = ValidationSet(other, size=(SIDE, SIDE), by_order=True)
        assert train_student(pool, images, tmp_path / "b", once, validation=meant).accuracy is not None
