"""What a training run takes for its own in the directory it is given, and what it leaves alone."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lpld_core.networks.weights import read_weights, save_weights
from lpld_core.train.evaluate import ValidationSet
from lpld_core.train.run_directory import TrainingRun
from lpld_core.train.settings import TrainSettings
from lpld_core.train.student import TrainResult, train_student
from lpld_core.train.trainer import Trainer
from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.pool.reader import PoolReader
from tests.lpld_core.image_folders import NETWORK, SIDE

SETTINGS = TrainSettings(epochs=2, learning_rate=0.01, student=NETWORK)
OTHERS = replace(SETTINGS, seed=7)
Train = Callable[..., TrainResult]


@pytest.fixture
def train(pool_path: Path, images: Path, tmp_path: Path) -> Train:
    def trained(settings: TrainSettings = SETTINGS, *, overwrite: bool = False) -> TrainResult:
        val = ValidationSet(images, size=(SIDE, SIDE))
        with PoolReader(pool_path) as pool:
            run = tmp_path / "run"
            return train_student(pool, images, run, settings, validation=val, overwrite=overwrite)

    return trained


def contents(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.iterdir()}


def test_a_student_without_its_checkpoint_is_not_replaced(train: Train, tmp_path: Path) -> None:
    train()
    (tmp_path / "run/checkpoint.safetensors").unlink()
    before = contents(tmp_path / "run")
    with pytest.raises(
        PoolConflictError, match=r"student\.safetensors: a student is already here.*--overwrite"
    ):
        train(OTHERS)
    assert contents(tmp_path / "run") == before
    train(OTHERS, overwrite=True)
    assert read_weights(tmp_path / "run/student.safetensors").about["settings"]["seed"] == 7
    assert len((tmp_path / "run/log.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("log", [True, False])
def test_a_student_of_this_very_run_is_finished(train: Train, tmp_path: Path, log: bool) -> None:
    settings = SETTINGS if log else replace(SETTINGS, ema=0.9)  # whose student is the average
    first = train(settings)
    (tmp_path / "run/checkpoint.safetensors").unlink()
    if not log:
        (tmp_path / "run/log.jsonl").unlink()
    before = contents(tmp_path / "run")
    again = train(settings)
    assert (again.resumed_from, again.steps, again.accuracy) == (2, first.steps, first.accuracy)
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize(
    "write",
    [
        lambda path: save_file({"w": torch.zeros(1)}, path),
        lambda path: save_file({"w": torch.zeros(1)}, path, metadata={"lpld-labels": "[1]"}),
        lambda path: save_weights(path, {"w": torch.zeros(1)}, {"settings": [1]}),
        lambda path: path.write_bytes(b"mine"),
    ],
    ids=["foreign", "odd metadata", "odd settings", "no weights"],
)
def test_a_student_from_elsewhere_is_not_replaced(
    train: Train, tmp_path: Path, write: Callable[[Path], None]
) -> None:
    (tmp_path / "run").mkdir()
    write(tmp_path / "run/student.safetensors")
    before = contents(tmp_path / "run")
    with pytest.raises(PoolConflictError, match="a student is already here"):
        train()
    assert contents(tmp_path / "run") == before
    assert train(overwrite=True).resumed_from == 0


def test_a_checkpoint_or_a_log_from_elsewhere_is_not_replaced(train: Train, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    log, checkpoint = tmp_path / "run/log.jsonl", tmp_path / "run/checkpoint.safetensors"
    for line in ('{"mine": 1}', "[1]", '{"epoch": 0, "steps": 3}'):
        log.write_text(f"{line}\n")
        with pytest.raises(PoolConflictError, match=r"log\.jsonl: the log of a training run is already here"):
            train()
        assert contents(tmp_path / "run") == {"log.jsonl": f"{line}\n".encode()}
    log.unlink()
    save_weights(checkpoint, {"w": torch.zeros(1)}, {"settings": [1]})
    with pytest.raises(PoolConflictError, match="a different training run is already here"):
        train()
    save_file({"w": torch.zeros(1)}, checkpoint, metadata={"lpld-labels": "[1]"})
    with pytest.raises(InvalidArgumentError, match="not a JSON object"):
        train()


def test_stopped_before_anything_is_saved_a_run_goes_on(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has a line then that no save has followed; it is this run's own all the same."""
    log = TrainingRun.log

    def stop(self: TrainingRun, record: dict[str, object]) -> None:
        log(self, record)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "log", stop)
        with pytest.raises(KeyboardInterrupt):
            train()
    again = train()
    assert again.resumed_from == 0
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1]
    stopped = read_weights(again.weights).tensors
    (tmp_path / "run").rename(tmp_path / "stopped")
    whole = read_weights(train().weights).tensors
    assert all(torch.equal(stopped[name], tensor) for name, tensor in whole.items())


def test_a_run_that_has_done_nothing_is_in_nobodys_way(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", lambda *_: float("nan"))
        with pytest.raises(Exception, match="lower the learning rate"):
            train(OTHERS)
    assert train().resumed_from == 0
