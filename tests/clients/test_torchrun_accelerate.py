"""torchrun and Accelerate: ranks together play what one process plays, and resume with other numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.launching import results, torchrun
from tests.clients.rows import STOP, Rows, epoch_alone, in_steps, open_loader, rows_of, together

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
def test_two_ranks_play_the_epoch_of_one_process(
    two_ranks: Path, client_pool: Path, client_images: Path, client: str
) -> None:
    found = results(two_ranks, 2)
    first, second = (epoch_alone(client_pool, client_images, epoch, 2) for epoch in (0, 1))
    for made in ("before", "after"):
        assert played(found, client, made) == first
    assert played(found, client, "stopped") == second[:STOP]


@pytest.mark.parametrize("client", CLIENTS)
def test_they_resume_at_the_next_step(two_ranks: Path, rest: Rows, client: str) -> None:
    assert played(results(two_ranks, 2), client, "rest") == in_steps(rest, 2)


def test_skipping_batches_comes_to_the_same_place(two_ranks: Path, rest: Rows) -> None:
    assert played(results(two_ranks, 2), "accelerate", "skipped") == in_steps(rest, 2)


def test_accumulation_ends_with_the_epoch(two_ranks: Path) -> None:
    for rank in results(two_ranks, 2):
        *steps, last = rank["accelerate"]["synced"]
        assert last
        assert steps == [number % 4 == 3 for number in range(len(steps))]
        assert len(steps) % 4 != 3


def test_one_process_goes_on(two_ranks: Path, client_pool: Path, client_images: Path, rest: Rows) -> None:
    torch = pytest.importorskip("torch")
    saved = torch.load(two_ranks / "accelerate" / "dl_state_dict.bin", weights_only=True)
    assert saved == json.loads((two_ranks / "plain0.json").read_text())
    loader = open_loader(client_pool, client_images)
    loader.load_state_dict(saved)
    assert rows_of(loader) == in_steps(rest, 1)


def test_three_ranks_go_on(
    two_ranks: Path, client_pool: Path, client_images: Path, rest: Rows, tmp_path: Path
) -> None:
    torchrun("ranks.py", 3, client_pool, client_images, tmp_path, two_ranks)
    for client in CLIENTS:
        assert played(results(tmp_path, 3), client, "rest") == in_steps(rest, 3)
