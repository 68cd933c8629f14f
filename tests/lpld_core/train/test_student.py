import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from PIL import Image
from torch import nn

from lpld_core.networks.models import SmallResNet, seeded
from lpld_core.networks.weights import read_weights
from lpld_core.settings import ViewSettings
from lpld_core.teachers.teacher import load_teacher
from lpld_core.train.evaluate import ValidationSet
from lpld_core.train.settings import StudentTemperature, TrainSettings
from lpld_core.train.student import (
    CALIBRATION_GRID,
    StudentLoss,
    TrainResult,
    epoch_steps,
    largest_only,
    train_student,
)
from lpld_core.train.train_teacher import TeacherJob, train_teacher, true_class_loss
from lpld_core.train.trainer import Trainer, TrainingBatch
from lpld_labels.errors import ComputationError, ImageMismatchError, InvalidArgumentError, PoolConflictError
from lpld_labels.pool.reader import PoolReader
from lpld_labels.transforms.settings import PruneSettings
from tests.factories import prune_pool, write_pool
from tests.lpld_core.image_folders import NETWORK, SIDE, write_images

SETTINGS = TrainSettings(epochs=4, learning_rate=0.01, student=NETWORK, evaluate_every=2)
GREY = replace(SETTINGS, mean=(0.5,) * 3, std=(0.5,) * 3, seed=1)


Train = Callable[..., TrainResult]


@pytest.fixture
def train(pool_path: Path, images: Path, tmp_path: Path) -> Train:
    def trained(name: str = "run", settings: TrainSettings = SETTINGS, **options: Any) -> TrainResult:
        with PoolReader(pool_path) as pool:
            return train_student(pool, options.pop("images", images), tmp_path / name, settings, **options)

    return trained


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def assert_same_tensors(found: Path, expected: Path) -> None:
    ours, theirs = read_weights(found).tensors, read_weights(expected).tensors
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def stopping(seen: list[int], moment: int) -> Callable[[int, int], None]:
    def stop(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == moment:
            raise KeyboardInterrupt

    return stop


def test_a_student_learns_and_is_written_down(train: Train, images: Path, tmp_path: Path) -> None:
    validation = ValidationSet(images, size=(SIDE, SIDE))
    seen: list[tuple[int, int]] = []
    result = train(validation=validation, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (24, 24)
    assert result.steps == 24
    log = log_of(tmp_path / "run")
    assert [record["epoch"] for record in log] == [0, 1, 2, 3]
    assert log[-1]["loss"] < log[0]["loss"]
    assert [record["top1"] is None for record in log] == [True, False, True, False]
    assert result.accuracy is not None
    assert log[-1]["top1"] == result.accuracy.top1
    student = load_teacher(NETWORK, weights=result.weights)
    assert student.input_size == (SIDE, SIDE)
    assert validation.accuracy(student.model, student.mean, student.std) == result.accuracy


CALIBRATED = replace(SETTINGS, temperature=0.01, student_temperature="calibrated", ema=0.9)
"""Sharp labels, so that the student's temperature moves."""


@pytest.mark.parametrize(
    "settings",
    [SETTINGS, replace(SETTINGS, optimizer="sgd", rate_steps="step", decay_on="all"), CALIBRATED],
    ids=["adamw", "sgd", "lpqld"],
)
def test_resuming_ends_with_the_same_weights(train: Train, tmp_path: Path, settings: TrainSettings) -> None:
    whole = train("whole", settings)
    with pytest.raises(KeyboardInterrupt):
        train("broken", settings, progress=stopping([], 15))
    resumed = train("broken", replace(settings, workers=1))
    assert (whole.resumed_from, resumed.resumed_from) == (0, 2)
    for file in ("student.safetensors", "checkpoint.safetensors"):
        assert_same_tensors(tmp_path / "broken" / file, tmp_path / "whole" / file)
    saved = read_weights(tmp_path / "whole/checkpoint.safetensors").tensors
    assert any(name.startswith("optimizer.") for name in saved)
    log, other = log_of(tmp_path / "whole"), log_of(tmp_path / "broken")
    assert [line["loss"] for line in log] == [line["loss"] for line in other]
    if settings is CALIBRATED:
        assert log[2]["student_temperature"] < 1
        # What is kept is the average.
        student = read_weights(whole.weights).tensors
        assert all(torch.equal(tensor, saved[f"average.{name}"]) for name, tensor in student.items())
        assert not torch.equal(student["conv1.weight"], saved["model.conv1.weight"])
    with (tmp_path / "broken/log.jsonl").open("a") as torn:
        torn.write('{"epoch": 4, "lo')
    again = train("broken", settings)
    assert (again.resumed_from, again.steps) == (4, 24)


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="training in fp16 requires PyTorch 2.3")
def test_fp16_resumes_with_its_loss_scale_and_the_sum_of_losses(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, epochs=2, amp="fp16")
    begin = Trainer.__init__

    def every_third(trainer: Trainer, *given: Any) -> None:
        begin(trainer, *given)
        trainer._steps_per_read = 3
        trainer._scaler.set_growth_interval(2)

    monkeypatch.setattr(Trainer, "__init__", every_third)
    monkeypatch.setattr("lpld_core.unfinished.SAVE_SECONDS", 0.0)
    whole = train("whole", settings)
    for moment in (1, 3):  # of four: six steps an epoch
        name = f"cut{moment}"
        with pytest.raises(KeyboardInterrupt):
            train(name, settings, progress=stopping([], moment))
        assert train(name, settings).steps == whole.steps == 12
        for file in ("student.safetensors", "checkpoint.safetensors"):
            assert_same_tensors(tmp_path / name / file, tmp_path / "whole" / file)
        ours, theirs = log_of(tmp_path / name), log_of(tmp_path / "whole")
        assert [{**line, "seconds": 0} for line in ours] == [{**line, "seconds": 0} for line in theirs]
    assert read_weights(tmp_path / "whole/checkpoint.safetensors").tensors["scaler.scale"] != 2**16


def test_replay_on_the_device_ends_with_the_same_weights(train: Train, tmp_path: Path) -> None:
    train("workers", replace(SETTINGS, replay="cpu", workers=1))
    with pytest.raises(KeyboardInterrupt):
        train("device", replace(SETTINGS, replay="device"), progress=stopping([], 15))
    train("device", replace(SETTINGS, replay="device"))
    for file in ("student.safetensors", "checkpoint.safetensors"):
        assert_same_tensors(tmp_path / "device" / file, tmp_path / "workers" / file)


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


def test_a_run_of_other_settings_is_respected(train: Train) -> None:
    train(settings=replace(SETTINGS, epochs=1))
    with pytest.raises(PoolConflictError, match="'temperature' differs"):
        train(settings=replace(SETTINGS, epochs=1, temperature=4.0))


def test_changed_images_are_refused_before_the_first_step(train: Train, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "folder")
    Image.new("RGB", (SIDE + 1, SIDE + 1)).save(folder / "class2/001.png")
    with pytest.raises(ImageMismatchError, match=r"class2/001\.png"):
        train(images=folder)
    assert not (tmp_path / "run").exists()


def test_settings_that_cannot_work_are_refused(train: Train, tmp_path: Path) -> None:
    four = write_images(tmp_path / "four", classes=4, per_class=1)
    with pytest.raises(InvalidArgumentError, match="number of classes"):
        train(validation=ValidationSet(four, size=(SIDE, SIDE)))
    with pytest.raises(ComputationError, match="training diverged"):
        train(settings=replace(SETTINGS, learning_rate=1e30, epochs=3))


def test_an_unknown_normalisation_is_refused_unless_given(
    pool_path: Path, images: Path, tmp_path: Path
) -> None:
    with PoolReader(pool_path) as pool:
        unknown = replace(pool.header, teachers=())
        write_pool(tmp_path / "pool", list(pool), header=unknown, images=pool.images).close()
    once = replace(SETTINGS, epochs=1)
    with PoolReader(tmp_path / "pool") as pool:
        with pytest.raises(InvalidArgumentError, match="normalisation is not known"):
            train_student(pool, images, tmp_path / "run", once)
        train_student(pool, images, tmp_path / "run", replace(once, mean=(0.5,) * 3, std=(0.5,) * 3))


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
def test_stopped_within_an_epoch_a_student_resumes_there(
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    temperature: StudentTemperature,
    reused: list[str],
) -> None:
    settings = replace(
        SETTINGS, epochs=2, temperature=0.02, rate_steps="step", student_temperature=temperature
    )
    whole = train("whole", settings)
    monkeypatch.setattr("lpld_core.unfinished.SAVE_SECONDS", 0.0)
    for moment in (2, 6, 9):  # of six steps an epoch
        name, seen = f"cut{moment}", list[int]()
        with pytest.raises(KeyboardInterrupt):
            train(name, settings, progress=stopping(seen, moment))
        again = train(name, settings, progress=stopping(seen, 0))
        # Only the last step of an epoch is not saved until the epoch is done.
        epochs, steps = divmod(moment - (moment % 6 == 0), 6)
        assert reused == [f"{again.weights}: resumes after {epochs} epochs and {steps} steps"]
        reused.clear()
        assert len(seen) == (13 if moment % 6 == 0 else 12)
        assert again.steps == whole.steps
        assert_same_tensors(again.weights, whole.weights)
        logs = log_of(tmp_path / "whole"), log_of(tmp_path / name)
        assert [line["loss"] for line in logs[0]] == [line["loss"] for line in logs[1]]
        assert not (tmp_path / name / ".unfinished").exists()


def test_stopped_anywhere_a_teacher_resumes_there(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job(name: str) -> TeacherJob:
        return TeacherJob(
            out=tmp_path / f"{name}.safetensors",
            network=NETWORK,
            size=(SIDE, SIDE),
            views=ViewSettings(batch_size=9),
            recipe=TrainSettings(epochs=2, learning_rate=0.01),
        )

    train_teacher(images, job("whole"))
    whole = (tmp_path / "whole.safetensors").read_bytes()
    monkeypatch.setattr("lpld_core.unfinished.SAVE_SECONDS", 0.0)
    for moment in (1, 3, 4):
        seen: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            train_teacher(images, job(f"cut{moment}"), progress=stopping(seen, moment))
        for _ in range(2):  # when all is done, nothing is done again
            train_teacher(images, job(f"cut{moment}"), progress=stopping(seen, 0))
            # Three steps an epoch; the last of one is not saved until the epoch is done.
            assert len(seen) == (7 if moment == 3 else 6)
        assert (tmp_path / f"cut{moment}.safetensors").read_bytes() == whole
        assert not (tmp_path / f"cut{moment}.safetensors.unfinished").exists()


OUTPUT = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 0.2]])
LABELS = torch.tensor([[2.0, -1.0, 0.0], [0.5, 2.0, -4.0]])
OWN, PARTNER, WEIGHT = torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([0.7, 0.7])

ALL = slice(None)


def loss_of(
    output: torch.Tensor = OUTPUT, labels: torch.Tensor = LABELS, kind: str = "logits", **settings: Any
) -> torch.Tensor:
    return StudentLoss(TrainSettings(**settings), label_kind=kind).of(labels, OWN)(output, ALL)


@pytest.mark.parametrize("temperature", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("squared", [False, True])
def test_kl_is_the_sum_over_classes_averaged_over_rows(temperature: float, squared: bool) -> None:
    p, q = (F.softmax(x / temperature, dim=1) for x in (LABELS, OUTPUT))
    expected = (p * (p / q).log()).sum() / 2 * (temperature**2 if squared else 1)
    torch.testing.assert_close(loss_of(temperature=temperature, scale_by_t2=squared), expected)


def test_probabilities_are_softened_like_the_logits_they_came_from() -> None:
    probabilities = F.softmax(LABELS, dim=1)
    torch.testing.assert_close(
        loss_of(labels=probabilities, kind="probabilities", temperature=4), loss_of(temperature=4)
    )


def test_a_probability_of_0_has_no_mass_and_costs_nothing() -> None:
    certain = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    output = OUTPUT.clone().requires_grad_()
    loss = loss_of(output, certain, "probabilities", temperature=4)
    torch.testing.assert_close(loss, F.cross_entropy(OUTPUT / 4, torch.tensor([0, 1])))
    loss.backward()  # type: ignore[no-untyped-call]
    assert output.grad is not None
    assert output.grad.isfinite().all()


def test_label_smoothing_shrinks_the_logits() -> None:
    # As the authors' programs write it.
    target = F.softmax((0.8 * LABELS + 0.2 * torch.full((2, 3), 1 / 3)) / 2, dim=1)
    expected = F.kl_div(F.log_softmax(OUTPUT / 2, dim=1), target, reduction="batchmean")
    torch.testing.assert_close(loss_of(temperature=2, label_smoothing=0.2), expected)


def test_mse_and_ground_truth() -> None:
    mixed = 0.7 * F.cross_entropy(OUTPUT, OWN) + 0.3 * F.cross_entropy(OUTPUT, PARTNER)
    torch.testing.assert_close(true_class_loss(OWN, PARTNER, WEIGHT)(OUTPUT, ALL), mixed)
    squares = ((OUTPUT - LABELS) ** 2).mean()
    own = F.cross_entropy(OUTPUT, OWN)
    torch.testing.assert_close(loss_of(loss="mse+gt", gamma=0.1), squares + 0.1 * own)
    with pytest.raises(InvalidArgumentError, match="requires logits"):
        loss_of(loss="mse+gt", kind="probabilities")


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_without_a_tail_the_kept_classes_share_the_mass(kind: str) -> None:
    labels = LABELS if kind == "logits" else F.softmax(LABELS, dim=1)
    loss = StudentLoss(TrainSettings(tail="none"), label_kind=kind, kept=2)
    expected = torch.zeros(2, 3)
    expected[:, :2] = F.softmax(LABELS[:, :2] / 20, dim=1)
    expected[0] = F.softmax(torch.tensor([2.0, -torch.inf, 0.0]) / 20, dim=0)
    torch.testing.assert_close(loss.target(labels), expected)
    assert torch.isneginf(largest_only(LABELS, 2)).sum() == 2
    whole = StudentLoss(TrainSettings(), label_kind=kind, kept=2).target(labels)
    torch.testing.assert_close(whole, F.softmax(LABELS / 20, dim=1))


def test_the_students_temperature_is_the_teachers_unless_given() -> None:
    p, q = F.softmax(LABELS / 20, dim=1), F.softmax(OUTPUT / 3, dim=1)
    torch.testing.assert_close(loss_of(student_temperature=3.0), (p * (p / q).log()).sum() / 2)


def test_calibrated_alignment_takes_the_best_temperature_of_the_last_batch() -> None:
    loss = StudentLoss(TrainSettings(temperature=4, student_temperature="calibrated"), label_kind="logits")
    assert loss.student_temperature == 1
    loss.of(LABELS, OWN)(OUTPUT, ALL)
    last = 0.1 * LABELS
    loss.of(LABELS, OWN)(last, ALL)
    loss.end_epoch()
    # softmax(0.1 z / t) is softmax(z / 4) at t = 0.4.
    assert loss.student_temperature == pytest.approx(0.4)
    assert loss.student_temperature in CALIBRATION_GRID.tolist()
    again = StudentLoss(TrainSettings(student_temperature="calibrated"), label_kind="logits")
    again.load_state(loss.state())
    assert again.student_temperature == loss.student_temperature
    np.testing.assert_allclose(CALIBRATION_GRID, np.arange(1, 101) / 100)


def test_a_falling_temperature_reaches_the_loss() -> None:
    settings = TrainSettings(temperature_schedule="step", scale_by_t2=True)
    loss = StudentLoss(settings, label_kind="logits")
    loss.start_epoch(89)
    assert loss.temperature == pytest.approx(20 * 0.7**3)
    torch.testing.assert_close(
        loss.of(LABELS, OWN)(OUTPUT, ALL), loss_of(temperature=20 * 0.7**3, scale_by_t2=True)
    )
