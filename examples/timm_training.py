"""Train a timm model from a pool with timm's own optimiser, schedule, loss and weight averaging.

python examples/timm_training.py POOL IMAGES --model resnet10t --epochs 2
"""

from __future__ import annotations

import argparse

import timm
import torch
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV3

from lpld_labels.loader import PoolLoader, pool_loader


def train(
    loader: PoolLoader, model: torch.nn.Module, *, epochs: int, temperature: float
) -> tuple[torch.nn.Module, list[float]]:
    """Train and return the averaged model and the mean loss of each epoch."""
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.01)
    scheduler, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=epochs, updates_per_epoch=len(loader), step_on_epochs=False
    )
    average = ModelEmaV3(model, decay=0.99)
    # Labels come softened, so timm's loss for soft targets is the distillation loss up to a constant.
    loss_of = SoftTargetCrossEntropy()
    means: list[float] = []
    updates = 0
    model.train()
    for _ in range(epochs):
        meter = AverageMeter()
        for batch in loader:
            loss = loss_of(model(batch.images) / temperature, batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            average.update(model, step=updates)
            scheduler.step_update(num_updates=updates)
            meter.update(loss.item(), n=len(batch.images))
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
    options = parser.parse_args()
    loader = pool_loader(
        options.pool,
        options.images,
        batch_size=options.batch_size,
        num_workers=options.workers,
        temperature=options.temperature,
    )
    model = timm.create_model(options.model, num_classes=loader.classes)
    _, means = train(loader, model, epochs=options.epochs, temperature=options.temperature)
    print("mean loss per epoch:", ", ".join(f"{mean:.4f}" for mean in means))


if __name__ == "__main__":
    main()
