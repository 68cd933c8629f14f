"""FKD's train_FKD.py and train_ViT_FKD.py on a pool.

In these scripts (szq0214/FKD) put the block below in place of `train_dataset = ...` to the end of
`train_loader_single_crop = ...`:

FKD/train_FKD.py                 lines 258 to 292
FKD/FKD_ViT/train_ViT_FKD.py     lines 298 to 332

    from lpld_labels.loader import fkd_loader
    train_loader = fkd_loader(
        args.softlabel_path, traindir, num_workers=args.workers,
        batch_size=args.batch_size, num_crops=args.num_crops)
    train_loader_single_crop = fkd_loader(
        args.softlabel_path, traindir, num_workers=args.workers,
        batch_size=args.batch_size * args.num_crops, num_crops=1)
    train_sampler = train_loader.sampler

--softlabel_path now names the pool; import with `--batch-size` as many images as a step has, which is the
script's --batch-size divided by --num_crops (and by the number of processes). A pool imported from FKD
gives labels as the program stored them, so --soft_label_type stays as it was; any other pool without mixing
gives whole probabilities: --soft_label_type ori. The program labels views that were resized bicubically
and trains on bilinear ones; a pool shows the student what the teacher saw.

Below, the scripts' loop in our words:

python -m examples.fkd_script POOL IMAGES --batch-size 256 --num_crops 4
"""

from __future__ import annotations

import argparse

import torch
from torch.nn import functional
from torchvision.models import resnet18

from examples.script_parts import accuracy, report
from lpld_labels.loader import fkd_loader
from lpld_labels.loader.authors import FkdLoader


def train(
    train_loader: FkdLoader,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    args: argparse.Namespace,
) -> list[float]:
    """Train one epoch and return the loss of every step."""
    losses = []
    model.train()
    for images, target, soft_label in train_loader:
        views, classes, labels = torch.cat(images), torch.cat(target), torch.cat(soft_label)
        if args.soft_label_type != "ori":
            labels = spread(labels, train_loader.classes)
        output = model(views)
        loss = -(labels * functional.log_softmax(output / args.temp, dim=1)).sum(dim=1).mean()
        accuracy(output, classes)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def spread(pairs: torch.Tensor, classes: int) -> torch.Tensor:
    """Return probabilities [B, classes] of pairs [B, 2, k]: what is left of 1 falls to the others."""
    index, values = pairs[:, 0].long(), pairs[:, 1]
    rest = (1 - values.sum(dim=1, keepdim=True)) / (classes - values.shape[1])
    return rest.repeat(1, classes).scatter_(1, index, values)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("softlabel_path", metavar="POOL")
    parser.add_argument("traindir", metavar="IMAGES")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--num_crops", type=int, default=4)
    parser.add_argument("--soft_label_type", default="marginal_smoothing", help="ori: whole probabilities")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--temp", type=float, default=1.0)
    args = parser.parse_args()
    # As in the scripts: crops of an image count as views of a step.
    batch_size = args.batch_size // args.num_crops
    train_loader = fkd_loader(
        args.softlabel_path,
        args.traindir,
        num_workers=args.workers,
        batch_size=batch_size,
        num_crops=args.num_crops,
    )
    train_loader_single_crop = fkd_loader(
        args.softlabel_path,
        args.traindir,
        num_workers=args.workers,
        batch_size=batch_size * args.num_crops,
        num_crops=1,
    )
    model = resnet18(num_classes=train_loader.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    losses: list[float] = []
    for _ in range(0, args.epochs - args.num_crops, args.num_crops):
        losses += train(train_loader, model, optimizer, args)
    for _ in range(max(0, args.epochs - args.num_crops), args.epochs):
        losses += train(train_loader_single_crop, model, optimizer, args)
    report(losses)


if __name__ == "__main__":
    main()
