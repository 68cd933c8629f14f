"""G-VBSM's train_FKD.py and train_FKD_parallel.py on a pool, with an unedited PyTorch.

In these scripts (shaoshitong/G_VBSM_Dataset_Condensation, the same in branches main and new_version) put
the block below in place of `train_dataset = ...` to the end of `train_loader = ...`:

Branch_Tiny_ImageNet/train/train_FKD.py               lines 145 to 165
Branch_CIFAR_100/train/train_FKD.py                   lines 144 to 170
Branch_CIFAR_10/train/train_FKD.py                    lines 146 to 172
Branch_full_ImageNet_1k/train/train_FKD_parallel.py   lines 169 to 186 away, the block for 188 and 189

    from lpld_labels.loader import gvbsm_loader
    train_loader = gvbsm_loader(
        args.fkd_path, args.train_dir, num_workers=args.workers,
        batch_size=args.batch_size, mix_type=args.mix_type)

--fkd-path now names the pool. Every process of the parallel script reads all rows and takes its own part of
each batch, as it does of its own folder. For a pruned pool add policy="batches".

Below, the scripts' loop in our words:

python -m examples.gvbsm_script POOL IMAGES --batch-size 100 --mix-type cutmix --loss-type mse_gt
"""

from __future__ import annotations

import argparse

import torch
from torch.nn import functional
from torchvision.models import resnet18

from examples.script_parts import Loss, accumulated_step, mix_images, report, softened_loss
from lpld_labels.loader import gvbsm_loader
from lpld_labels.loader.authors import GvbsmLoader


def train(train_loader: GvbsmLoader, model: torch.nn.Module, args: argparse.Namespace) -> list[float]:
    """Train and return the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    loss_of = mse_gt(args.ce_weight) if args.loss_type == "mse_gt" else softened_loss(args.temperature)
    losses = []
    model.train()
    for epoch in range(args.epochs):
        train_loader.dataset.set_epoch(epoch)
        for batch_idx, batch_data in enumerate(train_loader):
            images, target, flip_status, coords_status = batch_data[:4]
            mix_index, mix_lam, mix_bbox, soft_label = batch_data[4:]
            del flip_status, coords_status
            if any((side != side[0]).any() for side in mix_bbox):
                raise KeyError("In a batch, the mix_bbox should be same!")
            box = [side[0] for side in mix_bbox]
            images = mix_images(images, args.mix_type, mix_index, mix_lam, box)
            loss = accumulated_step(
                model,
                optimizer,
                loss_of,
                (images, soft_label.float(), target),
                batch_size=args.batch_size,
                parts=args.gradient_accumulation_steps,
                last=batch_idx == len(train_loader) - 1,
            )
            losses.append(loss)
    return losses


def mse_gt(weight: float) -> Loss:
    """Return the squared error of the logits plus some cross-entropy with the view's own class."""

    def loss(output: torch.Tensor, labels: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(output, labels) + functional.cross_entropy(output, classes) * weight

    return loss


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("fkd_path", metavar="POOL")
    parser.add_argument("train_dir", metavar="IMAGES")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=20.0)
    parser.add_argument("--mix-type", choices=["cutmix"])
    parser.add_argument("--loss-type", choices=["kl", "mse_gt"], default="kl")
    parser.add_argument("--ce-weight", type=float, default=0.1)
    args = parser.parse_args()
    train_loader = gvbsm_loader(
        args.fkd_path,
        args.train_dir,
        num_workers=args.workers,
        batch_size=args.batch_size,
        mix_type=args.mix_type,
    )
    report(train(train_loader, resnet18(num_classes=train_loader.classes), args))


if __name__ == "__main__":
    main()
