"""The examples run as they are, on a small pool."""

from __future__ import annotations

import re
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.lpld_labels.loader.loader_pools import build, write_images

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four images of each of six classes."""
    return write_images(tmp_path_factory.mktemp("images"), 24)


@pytest.fixture(scope="module")
def pool(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pools") / "pool"
    build(path, images, "cutmix", epochs=3, batch_size=12, size=32)
    return path


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of several test processes that wait for each other take minutes for seconds' work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", [script, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")


def test_plain_pytorch_trains_and_resumes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pool: Path,
    images: Path,
    tmp_path: Path,
) -> None:
    options = (pool, images, "--batch-size", 8, "--workers", 1, "--checkpoint", tmp_path / "run.pt")
    run(monkeypatch, "plain_pytorch.py", *options, "--epochs", 1)
    assert re.search(r"3 steps, loss [\d.]+ -> [\d.]+", capsys.readouterr().out)
    run(monkeypatch, "plain_pytorch.py", *options, "--epochs", 3)
    assert "6 steps" in capsys.readouterr().out
    run(monkeypatch, "plain_pytorch.py", *options, "--epochs", 3)
    assert "nothing left to do" in capsys.readouterr().out


def test_timm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pool: Path, images: Path
) -> None:
    pytest.importorskip("timm")
    run(monkeypatch, "timm_training.py", pool, images, "--batch-size", 8, "--workers", 0, "--epochs", 2)
    assert re.search(r"mean loss per epoch: [\d.]+, [\d.]+", capsys.readouterr().out)


# Lightning warns of many things (no validation, few batches to log, its own deprecations).
@pytest.mark.filterwarnings("ignore")
def test_lightning(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pool: Path,
    images: Path,
    tmp_path: Path,
) -> None:
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "lightning_training.py", pool, images, "--batch-size", 8, "--workers", 1, "--epochs", 2)
    assert re.search(r"loss [\d.]+ after 6 steps", capsys.readouterr().out)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    run(
        monkeypatch,
        "lightning_training.py",
        pool,
        images,
        *("--batch-size", 8, "--workers", 0, "--epochs", 3, "--resume", checkpoint),
    )
    assert re.search(r"loss [\d.]+ after 9 steps", capsys.readouterr().out)


@pytest.mark.filterwarnings("ignore")
def test_accelerate_trains_and_resumes_within_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pool: Path,
    images: Path,
    tmp_path: Path,
) -> None:
    pytest.importorskip("accelerate")
    options = (pool, images, "--batch-size", 8, "--workers", 1, "--checkpoint", tmp_path / "run")
    run(monkeypatch, "accelerate_training.py", *options, "--epochs", 2, "--stop-after", 4)
    assert re.search(r"^4 batches, loss [\d.]+", capsys.readouterr().out)
    # Three batches an epoch: two of the second epoch are left, and a third epoch.
    run(monkeypatch, "accelerate_training.py", *options, "--epochs", 3, "--accumulate", 2)
    assert re.search(r"^5 batches, loss [\d.]+", capsys.readouterr().out)
    run(monkeypatch, "accelerate_training.py", *options, "--epochs", 3)
    assert capsys.readouterr().out == "0 batches\n"


@pytest.mark.filterwarnings("ignore")
def test_trainer_trains_and_resumes_within_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pool: Path,
    images: Path,
    tmp_path: Path,
) -> None:
    pytest.importorskip("transformers")
    options = (pool, images, tmp_path, "--batch-size", 8, "--workers", 1, "--save-steps", 4)
    run(monkeypatch, "huggingface_trainer.py", *options, "--epochs", 2)
    assert re.search(r"loss [\d.]+ after 6 steps", capsys.readouterr().out)
    shutil.rmtree(tmp_path / "checkpoint-6")
    run(monkeypatch, "huggingface_trainer.py", *options, "--epochs", 3, "--resume")
    assert re.search(r"loss [\d.]+ after 9 steps", capsys.readouterr().out)
