"""Train a student from a pool with nothing but PyTorch, stopping and resuming at any step.

python examples/plain_pytorch.py POOL IMAGES --epochs 2
python examples/plain_pytorch.py POOL IMAGES --epochs 4 --checkpoint run.pt    # goes on where it stopped
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.nn import functional
from torchvision.models import resnet18

from lpld_labels.loader import PoolLoader, pool_loader

SAVE_EVERY = 50


def train(
    loader: PoolLoader, model: torch.nn.Module, *, epochs: int, temperature: float, checkpoint: Path | None
) -> list[float]:
    """Train up to `epochs` epochs in all and return the loss of every step taken."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses: list[float] = []

    def save() -> None:
        if checkpoint is not None:
            state = {
                "loader": loader.state_dict(),
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            torch.save(state, checkpoint)

    if checkpoint is not None and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        loader.load_state_dict(state["loader"])
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    model.train()
    # Each pass over the loader is one epoch; the state says how many are done.
    while loader.state_dict()["epoch"] < epochs:
        for batch in loader:
            logits = model(batch.images)
            loss = functional.kl_div(
                functional.log_softmax(logits / temperature, dim=1), batch.labels, reduction="batchmean"
            )
            optimizer.zero_grad()
            torch.autograd.backward(loss * temperature**2)
            optimizer.step()
            losses.append(loss.item())
            if len(losses) % SAVE_EVERY == 0:
                save()
        save()
    return losses


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pool")
    parser.add_argument("images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=20.0)
    parser.add_argument("--checkpoint", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # With a temperature the loader gives softened probabilities, on the device where the student is.
    loader = pool_loader(
        options.pool,
        options.images,
        batch_size=options.batch_size,
        num_workers=options.workers,
        temperature=options.temperature,
        device=device,
    )
    model = resnet18(num_classes=loader.classes).to(device, memory_format=torch.channels_last)
    losses = train(
        loader,
        model,
        epochs=options.epochs,
        temperature=options.temperature,
        checkpoint=options.checkpoint,
    )
    print(
        f"{len(losses)} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}" if losses else "nothing left to do"
    )


if __name__ == "__main__":
    main()
