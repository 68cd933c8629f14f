"""What the authors' training scripts have in common: mixing, softened loss, accumulated gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch.nn import functional

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(student's output, soft labels, classes) of one part of a batch -> loss."""


def mix_images(
    images: torch.Tensor,
    mix_type: str | None,
    mix_index: torch.Tensor | None,
    mix_lam: float | torch.Tensor | None,
    mix_bbox: Sequence[int | torch.Tensor] | None,
) -> torch.Tensor:
    """Mix a batch the way its labels were made."""
    if mix_type == "mixup":
        if mix_index is None or mix_lam is None:
            raise ValueError("--mix-type mixup needs partners and a strength in every batch")
        return mix_lam * images + (1 - mix_lam) * images[mix_index]
    if mix_type == "cutmix":
        if mix_index is None or mix_bbox is None:
            raise ValueError("--mix-type cutmix needs partners and a box in every batch")
        top, left, bottom, right = mix_bbox
        images[:, :, top:bottom, left:right] = images[mix_index, :, top:bottom, left:right]
    return images


def softened_loss(temperature: float) -> Loss:
    """Return the divergence of softened output from softened logits, the mean over a batch."""
    divergence = torch.nn.KLDivLoss(reduction="batchmean")

    def loss(output: torch.Tensor, labels: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        del classes
        student = functional.log_softmax(output / temperature, dim=1)
        value: torch.Tensor = divergence(student, functional.softmax(labels / temperature, dim=1))
        return value

    return loss


def accuracy(output: torch.Tensor, classes: torch.Tensor) -> float:
    """Return the percentage of right answers; like the scripts', it divides by the number of rows."""
    right = (output.argmax(dim=1) == classes).float().sum()
    return right.mul(100.0 / len(classes)).item()


def accumulated_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Loss,
    batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    *,
    batch_size: int,
    parts: int,
    last: bool,
) -> float:
    """Take one step with the gradients of a batch's parts, and return the loss.

    batch: images, soft labels and classes. Only of the last batch of a pass do the scripts look how
    many rows it has; every other one is cut as if it had batch_size.
    """
    optimizer.zero_grad()
    rows = batch_size // parts
    count = math.ceil(len(batch[0]) / rows) if last else parts
    total = 0.0
    for part in range(count):
        images, labels, classes = (tensor[part * rows : (part + 1) * rows] for tensor in batch)
        output = model(images)
        accuracy(output, classes)
        loss = loss_of(output, labels, classes) / parts
        torch.autograd.backward(loss)
        total += loss.item()
    optimizer.step()
    return total


def report(losses: Iterable[float]) -> None:
    """Print how training went."""
    taken = list(losses)
    print(f"{len(taken)} steps, loss {taken[0]:.6f} -> {taken[-1]:.6f}")
