"""SRe2L's validate/train_FKD.py on a pool, with an unedited PyTorch.

In that script (VILA-Lab/SRe2L, SRe2L/validate/train_FKD.py; validate/train_FKD.py of branch neurips is the
same) put this in place of lines 104 to 130, `train_dataset = ...` to the end of `train_loader = ...`:

    from lpld_labels.loader import sre2l_loader
    train_loader = sre2l_loader(
        args.fkd_path, args.train_dir, num_workers=args.workers,
        batch_size=args.batch_size, mix_type=args.mix_type)

--fkd-path now names the pool. Epoch e of the script is the stored epoch e, its last batch short as in the
program's own folder. For a pruned pool add policy="batches": then an epoch is drawn from all complete
batches. CDA, CV-DD and FADRM train with the same script. validate/train_KD.py asks a teacher while it
trains and reads no labels.

Below, the script's loop in our words:

python -m examples.sre2l_script POOL IMAGES --batch-size 1024 --mix-type cutmix
"""

from __future__ import annotations

import argparse

import torch
from torchvision.models import resnet18

from examples.script_parts import accumulated_step, mix_images, report, softened_loss
from lpld_labels.loader import sre2l_loader
from lpld_labels.loader.authors import Sre2lLoader


def train(train_loader: Sre2lLoader, model: torch.nn.Module, args: argparse.Namespace) -> list[float]:
    """Train and return the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    model.train()
    for epoch in range(args.epochs):
        train_loader.dataset.set_epoch(epoch)
        for batch_idx, batch_data in enumerate(train_loader):
            images, target, flip_status, coords_status = batch_data[0]
            mix_index, mix_lam, mix_bbox, soft_label = batch_data[1:]
            del flip_status, coords_status
            images = mix_images(images, args.mix_type, mix_index, mix_lam, mix_bbox)
            loss = accumulated_step(
                model,
                optimizer,
                softened_loss(args.temperature),
                (images, soft_label.float(), target),
                batch_size=args.batch_size,
                parts=args.gradient_accumulation_steps,
                last=batch_idx == len(train_loader) - 1,
            )
            losses.append(loss)
    return losses


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
    parser.add_argument("--mix-type", choices=["cutmix", "mixup"])
    args = parser.parse_args()
    train_loader = sre2l_loader(
        args.fkd_path,
        args.train_dir,
        num_workers=args.workers,
        batch_size=args.batch_size,
        mix_type=args.mix_type,
    )
    report(train(train_loader, resnet18(num_classes=train_loader.classes), args))


if __name__ == "__main__":
    main()
