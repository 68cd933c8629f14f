"""Train a timm model from a pool: timm's optimiser, schedule, loss, weight averaging and its loop's pairs.

python examples/timm_training.py POOL IMAGES --model resnet10t --epochs 2

`transform=pair` gives pairs (input, target), which is what timm's `train_one_epoch` (in its
train.py) takes apart; there, replace what makes `loader_train` by `pool_loader(...)`, `train_loss_fn` by
`SoftTargetLoss(temperature)`, and run with --no-prefetcher. The loop below consumes the loader the same
way: its length, `sampler.set_epoch`, pairs, gradient accumulation with a shorter last group.
"""

from __future__ import annotations

import argparse

import timm
import torch
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV3

from lpld_labels.loader import PoolBatch, PoolLoader, pool_loader


def pair(batch: PoolBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what timm's loop takes apart."""
    return batch.images, batch.labels


class SoftTargetLoss(SoftTargetCrossEntropy):  # type: ignore[misc]  # timm comes without types
    """timm's loss for soft targets on softened outputs: the distillation loss up to a constant."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Compare logits with the loader's softened labels."""
        loss: torch.Tensor = super().forward(x / self.temperature, target)
        return loss


def train(
    loader: PoolLoader, model: torch.nn.Module, *, epochs: int, temperature: float, accumulate: int
) -> tuple[torch.nn.Module, list[float]]:
    """Train and return the averaged model and the mean loss of each epoch."""
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.01)
    per_epoch = -(-len(loader) // accumulate)
    scheduler, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=epochs, updates_per_epoch=per_epoch, step_on_epochs=False
    )
    average = ModelEmaV3(model, decay=0.99)
    loss_of = SoftTargetLoss(temperature)
    means: list[float] = []
    updates = 0
    model.train()
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]  # as timm's script does
        meter = AverageMeter()
        batches = len(loader)
        last_group = batches - batches % accumulate
        optimizer.zero_grad()
        for number, (images, target) in enumerate(loader):
            loss = loss_of(model(images), target)
            group = accumulate if number < last_group else batches % accumulate
            (loss / group).backward()
            meter.update(loss.item(), n=images.size(0))
            if (number + 1) % accumulate and number + 1 < batches:
                continue
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
            average.update(model, step=updates)
            scheduler.step_update(num_updates=updates)
        means.append(meter.avg)
    return average.module, means


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pool")
    parser.add_argument("images")
    parser.add_argument("--model", default="resnet10t")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=4.0)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per step of the optimiser")
    options = parser.parse_args()
    loader = pool_loader(
        options.pool,
        options.images,
        batch_size=options.batch_size,
        num_workers=options.workers,
        temperature=options.temperature,
        transform=pair,
    )
    model = timm.create_model(options.model, num_classes=loader.classes)
    _, means = train(
        loader, model, epochs=options.epochs, temperature=options.temperature, accumulate=options.accumulate
    )
    print("mean loss per epoch:", ", ".join(f"{mean:.4f}" for mean in means))


if __name__ == "__main__":
    main()
