"""timm: the loop of the example takes pairs and accumulates a short last group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from lpld_labels.loader import PoolBatch
from tests.clients.rows import open_loader

pytest.importorskip("timm")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pair(batch: PoolBatch) -> tuple[torch.Tensor, torch.Tensor]:
    return batch.images, batch.labels


def test_the_examples_loop_updates_as_often_as_timms(client_pool: Path, client_images: Path) -> None:
    from examples.timm_training import train

    class Student(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 6)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.layer(images.mean(dim=(2, 3)))
            return logits

    torch.manual_seed(0)
    model = Student()
    start = model.layer.weight.detach().clone()
    loader = open_loader(client_pool, client_images, batch_size=10, temperature=4.0, transform=pair)
    updates: list[Any] = []
    counting = register_optimizer_step_post_hook(lambda *facts: updates.append(facts))
    average, means = train(loader, model, epochs=3, temperature=4.0, accumulate=3)
    counting.remove()
    assert len(means) == 3
    # Ten batches an epoch are four updates: the last one of a single batch.
    assert len(updates) == 12
    assert not torch.equal(model.layer.weight, start)
    assert not torch.equal(next(average.parameters()), model.layer.weight)
    assert loader.state_dict()["epoch"] == 3
