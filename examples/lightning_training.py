"""Train a student from a pool with Lightning, including its resuming in the middle of an epoch.

python examples/lightning_training.py POOL IMAGES --epochs 2

Loaders share epochs out among processes themselves, so tell Trainer not to: use_distributed_sampler=False.
"""

from __future__ import annotations

import argparse

import lightning
import torch
from torch.nn import functional
from torchvision.models import resnet18

from lpld_labels.loader import PoolBatch, pool_loader


class Student(lightning.LightningModule):
    """A ResNet-18 that learns softened labels."""

    def __init__(self, classes: int, temperature: float) -> None:
        super().__init__()
        self.network = resnet18(num_classes=classes)
        self.temperature = temperature

    def training_step(self, batch: PoolBatch, batch_idx: int) -> torch.Tensor:
        """Return the divergence of the student's softened output from the labels."""
        output = functional.log_softmax(self.network(batch.images) / self.temperature, dim=1)
        loss = functional.kl_div(output, batch.labels, reduction="batchmean") * self.temperature**2
        self.log("loss", loss, batch_size=len(batch.images))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.01)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pool")
    parser.add_argument("images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=4.0)
    parser.add_argument("--resume", help="a checkpoint of an earlier run")
    options = parser.parse_args()
    loader = pool_loader(
        options.pool,
        options.images,
        batch_size=options.batch_size,
        num_workers=options.workers,
        temperature=options.temperature,
    )
    trainer = lightning.Trainer(max_epochs=options.epochs, use_distributed_sampler=False)
    trainer.fit(Student(loader.classes, options.temperature), loader, ckpt_path=options.resume)
    print(f"loss {trainer.callback_metrics['loss']:.4f} after {trainer.global_step} steps")


if __name__ == "__main__":
    main()
