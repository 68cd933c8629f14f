"""The training loop of an SRe2L or LPLD script, reading a pool through an unedited PyTorch.

python examples/sre2l_script.py POOL IMAGES --epochs 2 --mix-type cutmix

Everything but the line that makes `train_loader` is as such scripts have it: the loader hands over
images that are not mixed yet, and the script mixes them as the labels' batch says.
"""

from __future__ import annotations

import argparse

import torch
from torch.nn import functional
from torchvision.models import resnet18

from lpld_labels.loader import Sre2lLoader, sre2l_loader


def mix_images(
    images: torch.Tensor,
    mix_type: str | None,
    mix_index: torch.Tensor | None,
    mix_lam: float | None,
    mix_bbox: list[int] | None,
) -> torch.Tensor:
    """Mix a batch the way relabelling did."""
    if mix_type == "mixup" and mix_index is not None and mix_lam is not None:
        return mix_lam * images + (1 - mix_lam) * images[mix_index]
    if mix_type == "cutmix" and mix_index is not None and mix_bbox is not None:
        top, left, bottom, right = mix_bbox
        images = images.clone()
        images[:, :, top:bottom, left:right] = images[mix_index, :, top:bottom, left:right]
    return images


def train(
    train_loader: Sre2lLoader,
    model: torch.nn.Module,
    *,
    epochs: int,
    temperature: float,
    mix_type: str | None,
) -> list[float]:
    """Train and return the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    loss_function_kl = torch.nn.KLDivLoss(reduction="batchmean")
    losses = []
    model.train()
    for epoch in range(epochs):
        train_loader.dataset.set_epoch(epoch)
        for batch_data in train_loader:
            images, target, flip_status, coords_status, index = batch_data[0]
            mix_index, mix_lam, mix_bbox, soft_label = batch_data[1:]
            del target, flip_status, coords_status, index
            images = mix_images(images, mix_type, mix_index, mix_lam, mix_bbox)
            optimizer.zero_grad()
            output = functional.log_softmax(model(images) / temperature, dim=1)
            loss = loss_function_kl(output, functional.softmax(soft_label.float() / temperature, dim=1))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pool")
    parser.add_argument("images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=20.0)
    parser.add_argument("--mix-type", choices=["cutmix", "mixup"])
    options = parser.parse_args()
    train_loader = sre2l_loader(options.pool, options.images, num_workers=options.workers)
    model = resnet18(num_classes=train_loader.classes)
    losses = train(
        train_loader,
        model,
        epochs=options.epochs,
        temperature=options.temperature,
        mix_type=options.mix_type,
    )
    print(f"{len(losses)} steps, loss {losses[0]:.6f} -> {losses[-1]:.6f}")


if __name__ == "__main__":
    main()
