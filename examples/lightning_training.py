"""Train a student from a pool with Lightning: one process or DDP, resuming in the middle of an epoch.

python examples/lightning_training.py POOL IMAGES --epochs 2
python examples/lightning_training.py POOL IMAGES --epochs 2 --devices 2
python examples/lightning_training.py POOL IMAGES --epochs 4 --devices 3 --resume CHECKPOINT

The loader may be made before or after Lightning starts its processes: it asks who shares the epoch when
the epoch begins, and Lightning leaves it as it is. `batch_size` is that of one process.
"""

from __future__ import annotations

import argparse
from typing import Any

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


class RecountSteps(lightning.Callback):
    """Lets Lightning go on with another number of processes than a checkpoint was saved with.

    Lightning ends an epoch after `len(loader)` steps and takes those made before from the checkpoint,
    where more processes had needed fewer steps for the same rows, or fewer processes more. batch_size:
    rows of one process.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        """Count the rows that are done in steps of the processes there are now."""
        loop = checkpoint["loops"]["fit_loop"]
        (loader,) = loop["state_dict"].get("combined_loader") or [{"steps": 0}]
        if loader["steps"]:
            steps = loader["done"] // (self.batch_size * trainer.world_size)
            current = loop["epoch_loop.batch_progress"]["current"]
            for name in current:
                # Some counters are one behind the others within a step.
                current[name] += steps - loader["steps"]


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pool")
    parser.add_argument("images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=4.0)
    parser.add_argument("--devices", type=int, default=1, help="how many processes")
    parser.add_argument("--resume", help="a checkpoint of an earlier run")
    options = parser.parse_args()
    loader = pool_loader(
        options.pool,
        options.images,
        batch_size=options.batch_size,
        num_workers=options.workers,
        temperature=options.temperature,
        # Lightning asks for the length of the first epoch only.
        equal_epochs=True,
    )
    trainer = lightning.Trainer(
        max_epochs=options.epochs, devices=options.devices, callbacks=[RecountSteps(options.batch_size)]
    )
    trainer.fit(Student(loader.classes, options.temperature), loader, ckpt_path=options.resume)
    if trainer.is_global_zero:
        print(f"loss {trainer.callback_metrics['loss']:.4f} after {trainer.global_step} steps")


if __name__ == "__main__":
    main()
