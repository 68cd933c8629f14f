"""The examples run as they are, on a small pool."""

import re
import runpy
import shutil
from collections.abc import Callable, Iterator
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


@pytest.fixture
def run(
    pool: Path,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """Run an example on the pool, in an empty directory; return what it prints."""
    monkeypatch.chdir(tmp_path)

    def start(script: str, *arguments: object) -> str:
        words = (pool, images, *arguments, "--batch-size", 8)
        monkeypatch.setattr("sys.argv", [script, *map(str, words)])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return start


def test_plain_pytorch_trains_and_resumes(run: Callable[..., str]) -> None:
    words = ("plain_pytorch.py", "--workers", 1, "--checkpoint", "run.pt")
    assert re.search(r"3 steps, loss [\d.]+ -> [\d.]+", run(*words, "--epochs", 1))
    assert "6 steps" in run(*words, "--epochs", 3)
    assert "nothing left to do" in run(*words, "--epochs", 3)


def test_timm(run: Callable[..., str]) -> None:
    pytest.importorskip("timm")
    printed = run("timm_training.py", "--workers", 0, "--epochs", 2)
    assert re.search(r"mean loss per epoch: [\d.]+, [\d.]+", printed)


# Lightning warns of many things (no validation, few batches to log, its own deprecations).
@pytest.mark.filterwarnings("ignore")
def test_lightning(run: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    printed = run("lightning_training.py", "--workers", 1, "--epochs", 2)
    assert re.search(r"loss [\d.]+ after 6 steps", printed)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    printed = run("lightning_training.py", "--workers", 0, "--epochs", 3, "--resume", checkpoint)
    assert re.search(r"loss [\d.]+ after 9 steps", printed)


@pytest.mark.filterwarnings("ignore")
def test_accelerate_trains_and_resumes_within_an_epoch(run: Callable[..., str]) -> None:
    pytest.importorskip("accelerate")
    words = ("accelerate_training.py", "--workers", 1, "--checkpoint", "run")
    assert re.search(r"^4 batches, loss [\d.]+", run(*words, "--epochs", 2, "--stop-after", 4))
    # Three batches an epoch: two of the second epoch are left, and a third epoch.
    assert re.search(r"^5 batches, loss [\d.]+", run(*words, "--epochs", 3, "--accumulate", 2))
    assert run(*words, "--epochs", 3) == "0 batches\n"


@pytest.mark.filterwarnings("ignore")
def test_trainer_trains_and_resumes_within_an_epoch(run: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    words = ("huggingface_trainer.py", tmp_path, "--workers", 1, "--save-steps", 4)
    assert re.search(r"loss [\d.]+ after 6 steps", run(*words, "--epochs", 2))
    shutil.rmtree(tmp_path / "checkpoint-6")
    assert re.search(r"loss [\d.]+ after 9 steps", run(*words, "--epochs", 3, "--resume"))
