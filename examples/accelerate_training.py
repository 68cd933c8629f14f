"""Train a student from a pool with Hugging Face's Accelerate, on one process or many.

python examples/accelerate_training.py POOL IMAGES --epochs 2
accelerate launch --num_processes 2 examples/accelerate_training.py POOL IMAGES --epochs 2
python examples/accelerate_training.py POOL IMAGES --epochs 4 --checkpoint run     # goes on where it stopped

`accelerator.prepare` takes the loader as it is: it shares epochs out itself (`batch_size` is that of one
process), gives batches on the accelerator's device and keeps its place in `save_state` and `load_state`,
so a run may go on with another number of processes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from accelerate import Accelerator
from torch.nn import functional
from torch.optim import AdamW
from torchvision.models import resnet18

from lpld_labels.loader import pool_loader

SAVE_EVERY = 50


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pool")
    parser.add_argument("images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=20.0)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per step of the optimiser")
    parser.add_argument("--stop-after", type=int, help="save and stop after so many batches")
    parser.add_argument("--checkpoint", type=Path)
    options = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=options.accumulate)
    loader = pool_loader(
        options.pool,
        options.images,
        batch_size=options.batch_size,
        num_workers=options.workers,
        temperature=options.temperature,
    )
    model = resnet18(num_classes=loader.classes)
    model, optimizer, loader = accelerator.prepare(model, AdamW(model.parameters(), lr=1e-3), loader)
    if options.checkpoint is not None and options.checkpoint.exists():
        accelerator.load_state(str(options.checkpoint))
    made, loss = 0, None
    model.train()
    # Each pass over the loader is one epoch, or the rest of one; the state says how many are done.
    while loader.state_dict()["epoch"] < options.epochs and made != options.stop_after:
        for batch in loader:
            with accelerator.accumulate(model):
                student = functional.log_softmax(model(batch.images) / options.temperature, dim=1)
                loss = functional.kl_div(student, batch.labels, reduction="batchmean")
                accelerator.backward(loss * options.temperature**2)
                optimizer.step()
                optimizer.zero_grad()
            made += 1
            if options.checkpoint is not None and made % SAVE_EVERY == 0:
                accelerator.save_state(str(options.checkpoint))
            if made == options.stop_after:
                break
    if options.checkpoint is not None:
        accelerator.save_state(str(options.checkpoint))
    last = f", loss {loss.item():.4f}" if loss is not None else ""
    accelerator.print(f"{made} batches{last}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
