"""Hugging Face's Trainer: fits, saves, and goes on at the exact next batch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lpld_labels.loader import PoolBatch
from tests.clients.rows import epoch_alone, open_loader

pytest.importorskip("transformers")
# transformers warns of its own deprecations, and of pinned memory without a GPU.
pytestmark = pytest.mark.filterwarnings("ignore")


class Student(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 6)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layer(images.mean(dim=(2, 3)))
        return logits


def fit(pool: Path, images: Path, out: Path, resume: Path | None, accumulate: int) -> Any:
    """Train two epochs from batches of ten rows; return the rows, the trainer's state and the weights."""
    from transformers import TrainingArguments

    from examples.huggingface_trainer import PoolTrainer

    rows: list[Any] = []

    class Recorder(PoolTrainer):
        def training_step(self, model: Any, inputs: dict[str, torch.Tensor], *facts: Any) -> torch.Tensor:
            rows.append(inputs["keys"].tolist())
            loss: torch.Tensor = super().training_step(model, inputs, *facts)
            return loss

    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=str(out),
        num_train_epochs=2,
        save_steps=7,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        gradient_accumulation_steps=accumulate,
    )
    loader = open_loader(pool, images, batch_size=10, temperature=4.0, transform=PoolBatch._asdict)
    student = Student()
    trainer = Recorder(student, arguments, loader=loader, temperature=4.0)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return rows, trainer.state, [weights.detach().clone() for weights in student.parameters()]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_it_resumes_at_the_next_batch(
    client_pool: Path, client_images: Path, tmp_path: Path, accumulate: int
) -> None:
    whole, state, expected = fit(client_pool, client_images, tmp_path / "whole", None, accumulate)
    assert whole == [step for epoch in range(2) for step in epoch_alone(client_pool, client_images, epoch, 2)]
    assert (state.global_step, state.epoch) == ({1: 20, 3: 8}[accumulate], 2.0)
    checkpoint = tmp_path / "whole" / "checkpoint-7"
    rest, state, weights = fit(client_pool, client_images, tmp_path / "rest", checkpoint, accumulate)
    # Ten batches an epoch are four steps of three: the seventh is that of the ninth batch of epoch 1.
    assert rest == whole[-{1: 13, 3: 1}[accumulate] :]
    assert state.epoch == 2.0
    assert all(torch.equal(found, right) for found, right in zip(weights, expected, strict=True))
