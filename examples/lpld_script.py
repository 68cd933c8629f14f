"""LPLD's relabel_and_validate/train_FKD_label_pruning_batch.py on a pool, with an unedited PyTorch.

In that script (he-y/soft-label-pruning-for-dataset-distillation) put this in place of lines 248 to 298,
`train_dataset = ...` to `sampler.use_batch(...)`, for all three datasets and granularities:

    from lpld_labels.loader import lpld_loader
    train_loader = lpld_loader(
        args.fkd_path, args.train_dir, num_workers=args.workers,
        batch_size=args.batch_size, mix_type=args.mix_type)
    train_dataset = train_loader.dataset

--fkd_path now names the pool. The script itself draws what to play: epochs (--granularity epoch), single
batches (batch) or an epoch's list of batches (batch_to_epoch); it draws from the first
int((1 - prune_ratio) * steps) of them, so with a pool that is pruned already set --prune_ratio such that
these are no more than the pool has.

In the program's own folders a list that names two batches which begin with the same image gets the labels
of one of them for both, and --granularity batch with accumulated gradients divides by zero at an epoch's
short last batch. Here each batch comes with its own labels, and `len(loader)` of a single batch is 1, so
that the script sees it is the last and looks at its rows.

Below, the script's loop in our words:

python -m examples.lpld_script POOL IMAGES --batch_size 1024 --mix_type cutmix --granularity batch_to_epoch
"""

from __future__ import annotations

import argparse

import torch
from torch.nn import functional
from torchvision.models import resnet18

from examples.script_parts import Loss, accumulated_step, mix_images, report, softened_loss
from lpld_labels.loader import lpld_loader
from lpld_labels.loader.authors import LpldLoader


def train(train_loader: LpldLoader, model: torch.nn.Module, args: argparse.Namespace) -> list[float]:
    """Train and return the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    length = train_loader.dataset.batch_num_per_epoch
    steps = args.epochs if args.granularity == "epoch" else args.epochs * length
    kept = int((1 - args.prune_ratio) * steps)
    losses: list[float] = []
    model.train()
    for _ in range(0, steps, length if args.granularity == "batch_to_epoch" else 1):
        if args.granularity == "batch_to_epoch":
            drawn = torch.randint(0, kept, (length,)).tolist()
            # The script plays no last batch of an epoch: it may be short.
            drawn = [number - 1 if (number + 1) % length == 0 else number for number in drawn]
            train_loader.sampler.set_batch_list(drawn)
            mappings = train_loader.sampler.get_batch_list_img_mapping()
            train_loader.dataset.set_batch_list(drawn, mappings)
        elif args.granularity == "batch":
            number = int(torch.randint(0, kept, (1,)).item())
            train_loader.sampler.set_batch(number)
            train_loader.dataset.set_batch(number)
        else:
            number = int(torch.randint(0, kept, (1,)).item())
            train_loader.sampler.set_epoch(number)
            train_loader.dataset.set_epoch(number)
        losses += one_pass(train_loader, model, optimizer, args)
    return losses


def one_pass(
    train_loader: LpldLoader,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    args: argparse.Namespace,
) -> list[float]:
    """Train on what was set and return the losses."""
    losses = []
    loss_of = tiny_loss(args.temperature) if args.dataset == "tiny" else softened_loss(args.temperature)
    for batch_idx, batch_data in enumerate(train_loader):
        images, target, flip_status, coords_status, idx = batch_data[0]
        mix_index, mix_lam, mix_bbox, soft_label = batch_data[1:]
        del flip_status, coords_status, idx
        images = mix_images(images, args.mix_type, mix_index, mix_lam, mix_bbox)
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


def tiny_loss(temperature: float) -> Loss:
    """Return the script's loss for Tiny-ImageNet: in logarithms, and times the squared temperature."""
    divergence = torch.nn.KLDivLoss(reduction="batchmean", log_target=True)

    def loss(output: torch.Tensor, labels: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        del classes
        student, teacher = (functional.log_softmax(x / temperature, dim=1) for x in (output, labels))
        value: torch.Tensor = divergence(student, teacher) * temperature**2
        return value

    return loss


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("fkd_path", metavar="POOL")
    parser.add_argument("train_dir", metavar="IMAGES")
    parser.add_argument("--dataset", choices=["imagenet1k", "imagenet21k", "tiny"], default="imagenet1k")
    parser.add_argument("--granularity", choices=["epoch", "batch", "batch_to_epoch"], default="epoch")
    parser.add_argument("--prune_ratio", type=float, default=0.0)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=20.0)
    parser.add_argument("--mix_type", choices=["cutmix", "mixup"])
    args = parser.parse_args()
    train_loader = lpld_loader(
        args.fkd_path,
        args.train_dir,
        num_workers=args.workers,
        batch_size=args.batch_size,
        mix_type=args.mix_type,
    )
    report(train(train_loader, resnet18(num_classes=train_loader.classes), args))


if __name__ == "__main__":
    main()
