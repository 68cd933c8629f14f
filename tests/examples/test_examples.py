"""The examples run as they are, on a small pool of real photos."""

from __future__ import annotations

import re
import runpy
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lpld_labels.loader import PoolBatch, pool_loader
from tests.lpld_labels.loader.loader_pools import build

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def images(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four photos of each of six classes."""
    root = tmp_path_factory.mktemp("tiny")
    taken = Counter[str]()
    with tarfile.open(shared_data / "tiny20.tar.gz") as archive:
        for member in archive:
            folder = Path(member.name).parent.name
            source = archive.extractfile(member) if member.name.startswith("train/") else None
            if source is None or taken[folder] == 4:
                continue
            taken[folder] += 1
            (root / folder).mkdir(exist_ok=True)
            (root / folder / Path(member.name).name).write_bytes(source.read())
            if taken.total() == 24:
                break
    return root


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
def test_lightning_resumes_in_the_middle_of_an_epoch(pool: Path, images: Path, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    options: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options |= {"enable_checkpointing": False, "use_distributed_sampler": False, "accelerator": "cpu"}

    class Recorder(lightning.LightningModule):  # type: ignore[name-defined,misc]  # a class found at run time
        """Notes which rows it is given."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.rows: list[Any] = []

        def training_step(self, batch: PoolBatch, batch_idx: int) -> torch.Tensor:
            self.rows.append(batch.keys.tolist())
            return self.layer(batch.images.mean(dim=(2, 3))).sum()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class SaveAtSeven(lightning.Callback):  # type: ignore[name-defined,misc]  # a class found at run time
        def on_train_batch_end(self, trainer: Any, *facts: Any) -> None:
            if trainer.global_step == 7:
                trainer.save_checkpoint(tmp_path / "seven.ckpt")

    def fit(resume: Path | None = None) -> list[Any]:
        model = Recorder()
        trainer = lightning.Trainer(max_epochs=3, callbacks=[SaveAtSeven()], **options)
        trainer.fit(model, pool_loader(pool, images, batch_size=5), ckpt_path=resume)
        return model.rows

    whole = fit()
    assert len(whole) == 15
    assert fit(tmp_path / "seven.ckpt") == whole[7:]


SCRIPTS = {
    "sre2l_script.py": ("--batch-size", 12, "--mix-type", "cutmix", "--gradient-accumulation-steps", 2),
    "lpld_script.py": ("--batch_size", 12, "--mix_type", "cutmix", "--granularity", "batch_to_epoch"),
    "lpqld_script.py": ("--batch_size", 12, "--mix_type", "cutmix", "--label_quantization", "MR-3"),
    "gvbsm_script.py": ("--batch-size", 12, "--mix-type", "cutmix", "--loss-type", "mse_gt"),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_authors_scripts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pool: Path, images: Path, script: str
) -> None:
    run(monkeypatch, script, pool, images, "--workers", 1, "--epochs", 2, *SCRIPTS[script])
    assert re.search(r"4 steps, loss [\d.]+ -> [\d.]+", capsys.readouterr().out)


def test_fkd_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], images: Path, tmp_path: Path
) -> None:
    build(tmp_path / "pool", images, "none", epochs=3, batch_size=12, size=32)
    options = ("--batch-size", 24, "--num_crops", 2, "--epochs", 4, "--soft_label_type", "ori")
    run(monkeypatch, "fkd_script.py", tmp_path / "pool", images, "--workers", 0, *options)
    assert re.search(r"4 steps, loss [\d.]+ -> [\d.]+", capsys.readouterr().out)
