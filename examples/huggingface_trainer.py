"""Train a student from a pool with Hugging Face's Trainer, with its checkpoints and its resuming.

python examples/huggingface_trainer.py POOL IMAGES OUT --epochs 2
torchrun --nproc-per-node 2 examples/huggingface_trainer.py POOL IMAGES OUT --epochs 2
python examples/huggingface_trainer.py POOL IMAGES OUT --epochs 4 --resume     # from the last checkpoint

The loader takes the place of Trainer's own, and is left as it is: it shares epochs out among processes
itself. `transform=PoolBatch._asdict` gives dictionaries with the fields of PoolBatch. Trainer resumes in the
middle of an epoch by skipping batches, which costs nothing here. It counts epochs by the number of steps
of the first, hence `equal_epochs`; and it expects as many processes as before.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch.nn import functional
from torchvision.models import resnet18
from transformers import Trainer, TrainingArguments

from lpld_labels.loader import PoolBatch, PoolLoader, pool_loader


class PoolTrainer(Trainer):
    """Hugging Face's Trainer on the batches of a pool."""

    def __init__(self, *arguments: Any, loader: PoolLoader, temperature: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.loader = loader
        self.temperature = temperature

    def get_train_dataloader(self) -> PoolLoader:
        """Return the pool's loader."""
        return self.loader

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the divergence of the student's softened output from the labels."""
        del num_items_in_batch  # the divergence is a mean over the batch already
        logits = model(inputs["images"])
        student = functional.log_softmax(logits / self.temperature, dim=1)
        loss = functional.kl_div(student, inputs["labels"], reduction="batchmean") * self.temperature**2
        return (loss, {"logits": logits}) if return_outputs else loss


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pool")
    parser.add_argument("images")
    parser.add_argument("out")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=4.0)
    parser.add_argument("--save-steps", type=int, default=50)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    loader = pool_loader(
        options.pool,
        options.images,
        batch_size=options.batch_size,
        num_workers=options.workers,
        temperature=options.temperature,
        transform=PoolBatch._asdict,
        equal_epochs=True,
    )
    trainer = PoolTrainer(
        resnet18(num_classes=loader.classes),
        TrainingArguments(
            output_dir=options.out,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            learning_rate=1e-3,
            save_steps=options.save_steps,
            report_to=[],
        ),
        loader=loader,
        temperature=options.temperature,
    )
    result = trainer.train(resume_from_checkpoint=options.resume)
    print(f"loss {result.training_loss:.4f} after {result.global_step} steps")


if __name__ == "__main__":
    main()
