"""Which process of how many this one is: as given, else torch.distributed's, else a run of one.

Asked for when an iteration starts and not when a loader is made, because launchers such as Lightning's
set up torch.distributed in between. Where the environment that a launcher has left says otherwise,
every process would train on the same rows without a word; that is refused.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch.distributed

from lpld_labels.errors import InvalidArgumentError


class Processes(NamedTuple):
    """Number `rank` of `world` processes that share each epoch."""

    rank: int
    world: int


def current_processes(rank: int | None = None, world_size: int | None = None) -> Processes:
    """Return who shares the epochs now; an explicit rank and world size win."""
    if rank is not None and world_size is not None:
        return Processes(rank, world_size)
    found = Processes(0, 1)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        found = Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
    _check_environment(found)
    return found


def _check_environment(found: Processes) -> None:
    """Refuse what a launcher's variables contradict: torchrun's, Accelerate's (the same), Lightning's."""
    world, rank = _number("WORLD_SIZE"), _number("RANK")
    # Lightning's launcher names no RANK; a process that is not the first on its machine is not alone.
    not_alone = found.world == 1 and (_number("LOCAL_RANK") or 0) > 0
    if (world is None or world == found.world) and (rank is None or rank == found.rank) and not not_alone:
        return
    said = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    raise InvalidArgumentError(
        "the launcher's environment and torch.distributed disagree about the number of processes",
        expected=f"rank {found.rank} of {found.world}, as torch.distributed says"
        if found.world > 1
        else "a run of one process, since torch.distributed is not initialised",
        got=", ".join(f"{name}={value}" for name, value in said.items() if value is not None),
        hint="call torch.distributed.init_process_group before the first batch, or give rank and world_size",
    )


def _number(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() else None
