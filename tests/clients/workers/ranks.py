"""Run by torchrun: what a rank plays with plain torch.distributed, and under Accelerate.

ranks.py POOL IMAGES OUT [RESUME], where RESUME is the OUT of a run to go on from.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator

from tests.clients.rows import STOP, open_loader, rows_of


def stop(loader: Any) -> list[Any]:
    """Play some steps of the next epoch."""
    batches = iter(loader)
    return [next(batches).keys.tolist() for _ in range(STOP)]


def plain(pool: str, images: str, out: Path, resume: Path | None) -> dict[str, Any]:
    """Make one loader before the process group and one after it."""
    before = open_loader(pool, images)
    dist.init_process_group("gloo")
    after = open_loader(pool, images)
    found: dict[str, Any] = {}
    try:
        if resume is not None:
            before.load_state_dict(json.loads((resume / "plain.json").read_text()))
            found["rest"] = rows_of(before)
            return found
        found["before"], found["after"] = rows_of(before), rows_of(after)
        found["stopped"] = stop(before)
        state = before.state_dict()
        if dist.get_rank() == 0:
            (out / "plain.json").write_text(json.dumps(state))
        resumed = open_loader(pool, images, num_workers=1)
        resumed.load_state_dict(state)
        found["rest"] = rows_of(resumed)
        return found
    finally:
        dist.barrier()
        dist.destroy_process_group()


def accelerated(pool: str, images: str, out: Path, resume: Path | None) -> dict[str, Any]:
    """The same through accelerator.prepare, its checkpoints and its skip_first_batches."""
    early = open_loader(pool, images)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model, before, after = accelerator.prepare(torch.nn.Linear(2, 1), early, open_loader(pool, images))
    found: dict[str, Any] = {"device": str(accelerator.device)}
    if resume is not None:
        accelerator.load_state(str(resume / "accelerate"))
        found["rest"] = rows_of(before)
        return found
    found["before"], found["after"] = rows_of(before), rows_of(after)
    found["stopped"] = stop(before)
    accelerator.save_state(str(out / "accelerate"))
    accelerator.wait_for_everyone()
    for loader in (before, after):
        loader.set_epoch(7)
    accelerator.load_state(str(out / "accelerate"))
    found["rest"] = rows_of(before)
    # A loader that was not saved goes to its place by skipping, as Accelerate's examples do.
    after.set_epoch(1)
    found["skipped"] = rows_of(accelerator.skip_first_batches(after, STOP))
    found["synced"] = []
    for _ in before:
        with accelerator.accumulate(model):
            found["synced"].append(accelerator.sync_gradients)
    accelerator.end_training()
    return found


def main() -> None:
    pool, images, *directories = sys.argv[1:]
    out, resume, *_ = [*map(Path, directories), None]
    assert out is not None
    found = {"plain": plain(pool, images, out, resume)}
    found["accelerate"] = accelerated(pool, images, out, resume)
    (out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
