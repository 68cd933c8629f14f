"""Lightning: its DDP launcher, loaders made before and after the process group, checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.clients.launching import WORKERS, results, run
from tests.clients.rows import PER_RANK, Rows, epoch_alone, in_steps, open_loader, together


def ddp(ranks: int, *arguments: object) -> None:
    """Start the first rank; Lightning starts the others and finds a free port on this machine."""
    pool, images, out, *rest = arguments
    words = [sys.executable, WORKERS / "lightning_ranks.py", pool, images, out, ranks, *rest]
    run([str(word) for word in words])


@pytest.fixture(scope="module")
def two_ranks(client_pool: Path, client_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("lightning")
    out = tmp_path_factory.mktemp("lightning")
    ddp(2, client_pool, client_images, out)
    return out


def epochs(out: Path, ranks: int, part: str) -> dict[str, list[Rows]]:
    found = [rank[part] for rank in results(out, ranks)]
    return {epoch: together([rank[epoch] for rank in found]) for epoch in found[0]}


def test_two_ranks_play_the_epochs_of_one_process_and_resume_at_the_next_step(
    two_ranks: Path, client_pool: Path, client_images: Path, rest: Rows
) -> None:
    expected = {str(epoch): epoch_alone(client_pool, client_images, epoch, 2) for epoch in range(3)}
    assert epochs(two_ranks, 2, "before") == expected
    assert epochs(two_ranks, 2, "resumed") == {"1": in_steps(rest, 2), "2": expected["2"]}


# Lightning warns of many things (no validation, few batches to log, its own deprecations).
@pytest.mark.filterwarnings("ignore")
def test_one_process_goes_on(two_ranks: Path, client_pool: Path, client_images: Path, rest: Rows) -> None:
    import lightning

    from examples.lightning_training import RecountSteps
    from tests.clients.workers.lightning_ranks import QUIET, Recorder

    model = Recorder()
    trainer = lightning.Trainer(max_epochs=3, callbacks=[RecountSteps(PER_RANK)], **QUIET)
    trainer.fit(
        model,
        open_loader(client_pool, client_images),
        ckpt_path=two_ranks / "stopped.ckpt",
        weights_only=True,
    )
    assert model.rows == {1: in_steps(rest, 1), 2: epoch_alone(client_pool, client_images, 2, 1)}
