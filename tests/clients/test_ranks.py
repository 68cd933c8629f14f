"""torchrun, Accelerate and Lightning: ranks play what one process plays, and resume with other numbers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.launching import WORKERS, results, run, torchrun
from tests.clients.rows import PER_RANK, STOP, Rows, epoch_alone, in_steps, open_loader, rows_of, together

CLIENTS = ("plain", "accelerate")


@pytest.fixture(scope="module")
def two_ranks(client_pool: Path, client_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("accelerate")
    out = tmp_path_factory.mktemp("two_ranks")
    torchrun("ranks.py", 2, client_pool, client_images, out)
    return out


def played(found: list[dict[str, Any]], client: str, part: str) -> list[Rows]:
    return together([rank[client][part] for rank in found])


@pytest.mark.parametrize("client", CLIENTS)
def test_two_ranks_play_the_epoch_of_one_process_and_resume(
    two_ranks: Path, client_pool: Path, client_images: Path, rest: Rows, client: str
) -> None:
    found = results(two_ranks, 2)
    first, second = (epoch_alone(client_pool, client_images, epoch, 2) for epoch in (0, 1))
    for made in ("before", "after"):
        assert played(found, client, made) == first
    assert played(found, client, "stopped") == second[:STOP]
    assert played(found, client, "rest") == in_steps(rest, 2)


def test_accelerate_skips_and_accumulates(two_ranks: Path, rest: Rows) -> None:
    found = results(two_ranks, 2)
    assert played(found, "accelerate", "skipped") == in_steps(rest, 2)
    for rank in found:
        *steps, last = rank["accelerate"]["synced"]
        assert last, "accumulation ends with the epoch"
        assert steps == [number % 4 == 3 for number in range(len(steps))]
        assert len(steps) % 4 != 3


def test_one_process_resumes(two_ranks: Path, client_pool: Path, client_images: Path, rest: Rows) -> None:
    torch = pytest.importorskip("torch")
    saved = torch.load(two_ranks / "accelerate" / "dl_state_dict.bin", weights_only=True)
    assert saved == json.loads((two_ranks / "plain0.json").read_text())
    loader = open_loader(client_pool, client_images)
    loader.load_state_dict(saved)
    assert rows_of(loader) == in_steps(rest, 1)


def test_three_ranks_resume(
    two_ranks: Path, client_pool: Path, client_images: Path, rest: Rows, tmp_path: Path
) -> None:
    torchrun("ranks.py", 3, client_pool, client_images, tmp_path, two_ranks)
    for client in CLIENTS:
        assert played(results(tmp_path, 3), client, "rest") == in_steps(rest, 3)


# Lightning warns of many things (no validation, few batches to log, its own deprecations).
@pytest.mark.filterwarnings("ignore")
def test_lightning(client_pool: Path, client_images: Path, rest: Rows, tmp_path: Path) -> None:
    """Lightning starts the second rank itself. One process resumes from the checkpoint of two."""
    lightning = pytest.importorskip("lightning")
    words = (sys.executable, WORKERS / "lightning_ranks.py", client_pool, client_images, tmp_path, 2)
    run([str(word) for word in words])
    found = results(tmp_path, 2)
    rows = {
        (part, epoch): together([rank[part][epoch] for rank in found])
        for part in ("before", "resumed")
        for epoch in found[0][part]
    }
    epochs = [epoch_alone(client_pool, client_images, epoch, 2) for epoch in range(3)]
    expected = {("before", str(epoch)): steps for epoch, steps in enumerate(epochs)}
    assert rows == {**expected, ("resumed", "1"): in_steps(rest, 2), ("resumed", "2"): epochs[2]}

    from examples.lightning_training import RecountSteps
    from tests.clients.workers.lightning_ranks import QUIET, Recorder

    model = Recorder()
    trainer = lightning.Trainer(max_epochs=3, callbacks=[RecountSteps(PER_RANK)], **QUIET)
    loader = open_loader(client_pool, client_images)
    trainer.fit(model, loader, ckpt_path=tmp_path / "stopped.ckpt", weights_only=True)
    assert model.rows == {1: in_steps(rest, 1), 2: epoch_alone(client_pool, client_images, 2, 1)}
