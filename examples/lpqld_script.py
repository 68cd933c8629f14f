"""LPQLD's relabel_and_validate/train_FKD_LPQLD.py on a pool, with an unedited PyTorch.

In that script (he-y/soft-label-pruning-quantization-for-dataset-distillation) put this in place of lines
332 to 393, `batch_indices_path = ...` to the end of the last `train_loader = ...`:

    from lpld_labels.loader import lpqld_loader
    train_loader = lpqld_loader(
        args.fkd_path, args.train_dir, num_workers=args.workers,
        batch_size=args.batch_size, mix_type=args.mix_type,
        label_quantization=args.label_quantization)
    train_dataset = train_loader.dataset
    args.total_num_batches = train_dataset.total_num_batches

--fkd_path now names the pool, which may hold whole labels in any codec: with --label_quantization MR-50 the
script gets the 50 largest of each row, whatever is stored. Its temperature schedules and the student's own
temperature work as they are. Not for --use_rand_aug: pools hold no such images. MRS and MS run on no
folder of the program either: it stores no sample_min, and its loader knows no MS.

Below, the script's loop in our words:

python -m examples.lpqld_script POOL IMAGES --batch_size 128 --mix_type cutmix --label_quantization MR-50
"""

from __future__ import annotations

import argparse

import torch
from torch.nn import functional
from torchvision.models import resnet18

from examples.script_parts import accumulated_step, mix_images, report
from lpld_labels.loader import lpqld_loader
from lpld_labels.loader.authors import LpqldLoader


def train(train_loader: LpqldLoader, model: torch.nn.Module, args: argparse.Namespace) -> list[float]:
    """Train and return the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses: list[float] = []
    model.train()
    for _ in range(args.epochs):
        shuffled = torch.randperm(train_loader.dataset.total_num_batches)
        drawn = shuffled[: train_loader.dataset.batch_num_per_epoch].tolist()
        batch_sampler = getattr(train_loader, "batch_sampler", None)
        (train_loader.sampler if batch_sampler is None else batch_sampler).set_batch_list(drawn)
        losses += one_pass(train_loader, model, optimizer, args)
    return losses


def one_pass(
    train_loader: LpqldLoader,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    args: argparse.Namespace,
) -> list[float]:
    """Train on what was set and return the losses."""
    losses = []
    for batch_idx, batch_data in enumerate(train_loader):
        images, target, flip_status, coords_status, idx = batch_data[0]
        del flip_status, coords_status, idx
        label_indices = None
        if args.label_quantization:
            mix_index, mix_lam, mix_bbox, soft_label, label_indices = batch_data[1:]
        else:
            mix_index, mix_lam, mix_bbox, soft_label = batch_data[1:]
        images = mix_images(images, args.mix_type, mix_index, mix_lam, mix_bbox)
        teacher = spread(soft_label.float() / args.temperature, label_indices, train_loader.classes)
        loss = accumulated_step(
            model,
            optimizer,
            lambda output, labels, _: torch.nn.KLDivLoss(reduction="batchmean")(
                functional.log_softmax(output / args.temperature, dim=1), labels
            ),
            (images, teacher, target),
            batch_size=args.batch_size,
            parts=args.gradient_accumulation_steps,
            last=batch_idx == len(train_loader) - 1,
        )
        losses.append(loss)
    return losses


def spread(logits: torch.Tensor, classes: torch.Tensor | None, count: int) -> torch.Tensor:
    """Return probabilities [B, count]: of the kept classes alone, where only some are kept."""
    kept = functional.softmax(logits, dim=1)
    if classes is None:
        return kept
    return torch.zeros(len(kept), count).scatter_(1, classes.long(), kept)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("fkd_path", metavar="POOL")
    parser.add_argument("train_dir", metavar="IMAGES")
    parser.add_argument("--label_quantization", help="MR-k")
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=20.0)
    parser.add_argument("--mix_type", choices=["cutmix", "mixup"])
    args = parser.parse_args()
    train_loader = lpqld_loader(
        args.fkd_path,
        args.train_dir,
        num_workers=args.workers,
        batch_size=args.batch_size,
        mix_type=args.mix_type,
        label_quantization=args.label_quantization,
    )
    report(train(train_loader, resnet18(num_classes=train_loader.classes), args))


if __name__ == "__main__":
    main()
