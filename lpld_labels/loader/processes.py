"""Which process of a distributed run this is."""

from __future__ import annotations

import torch.distributed

from lpld_labels.errors import InvalidArgumentError


def process_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return (rank, number of processes): as given, else torch.distributed's, else a run of one."""
    if (rank is None) != (world_size is None):
        raise InvalidArgumentError("give rank and world_size together", got=f"{rank} and {world_size}")
    if rank is not None and world_size is not None:
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
