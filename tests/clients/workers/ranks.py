"""Run by torchrun: what a rank plays with plain torch.distributed, and under Accelerate.

ranks.py POOL IMAGES OUT            plays, stops in the middle of an epoch and saves there
ranks.py POOL IMAGES OUT STOPPED    goes on from the OUT of another run
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator

from lpld_labels.loader import PoolLoader
from tests.clients.rows import STOP, open_loader, rows_of


def stop(loader: PoolLoader) -> list[Any]:
    """Play some steps of the next epoch."""
    batches = iter(loader)
    return [next(batches).keys.tolist() for _ in range(STOP)]


def plain(before: PoolLoader, after: PoolLoader, resumed: PoolLoader, out: Path) -> dict[str, Any]:
    """Play loaders made before and after the process group, and go on with another in the middle."""
    found = {"before": rows_of(before), "after": rows_of(after), "stopped": stop(before)}
    (out / f"plain{dist.get_rank()}.json").write_text(json.dumps(before.state_dict()))
    resumed.load_state_dict(before.state_dict())
    return {**found, "rest": rows_of(resumed)}


def accelerated(before: PoolLoader, after: PoolLoader, out: Path) -> dict[str, Any]:
    """The same through accelerator.prepare, its checkpoints and its skip_first_batches."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model, before, after = accelerator.prepare(torch.nn.Linear(2, 1), before, after)
    found: dict[str, Any] = {"before": rows_of(before), "after": rows_of(after), "stopped": stop(before)}
    accelerator.save_state(str(out / "accelerate"))
    accelerator.wait_for_everyone()
    before.set_epoch(7)
    after.set_epoch(7)
    accelerator.load_state(str(out / "accelerate"))
    found["rest"] = rows_of(before)
    # A loader that was not saved goes to its place by skipping, as Accelerate's examples do.
    after.set_epoch(1)
    found["skipped"] = rows_of(accelerator.skip_first_batches(after, STOP))
    found["synced"] = []
    for _ in before:
        with accelerator.accumulate(model):
            found["synced"].append(accelerator.sync_gradients)
    return found


def go_on(loaders: list[PoolLoader], stopped: Path) -> dict[str, Any]:
    """Let Accelerate make the process group, load its checkpoint, and a plain loader its state."""
    accelerator = Accelerator(cpu=True)
    _, prepared = accelerator.prepare(torch.nn.Linear(2, 1), loaders[0])
    accelerator.load_state(str(stopped / "accelerate"))
    loaders[1].load_state_dict(json.loads((stopped / "plain1.json").read_text()))
    return {"accelerate": {"rest": rows_of(prepared)}, "plain": {"rest": rows_of(loaders[1])}}


def main() -> None:
    pool, images, out, *stopped = sys.argv[1:]
    early = [open_loader(pool, images) for _ in range(2)]
    if stopped:
        found = go_on(early, Path(stopped[0]))
    else:
        dist.init_process_group("gloo")
        late = [open_loader(pool, images) for _ in range(2)]
        resumed = open_loader(pool, images, num_workers=1)
        found = {"plain": plain(early[0], late[0], resumed, Path(out))}
        found["accelerate"] = accelerated(early[1], late[1], Path(out))
    (Path(out) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
