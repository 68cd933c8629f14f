"""Training in several processes: which one this is, and what all of them do together.

A launcher (torchrun) says by environment variables who is who. Gradients travel through
DistributedDataParallel; the rest, a few numbers a step, goes through here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lpld_labels.errors import InvalidArgumentError, WorkerDiedError

Value = TypeVar("Value")
GO_ON = (
    "run the same command again, with as many processes as you like: it goes on from what was saved, "
    "at most a minute ago"
)
_TOLD = "lpld/told"
_LOST = ("gloo", "nccl", "connection", "broken pipe", "socket")
"""Words of the errors that torch raises when another process is gone; there is no class for all of them."""


@dataclass(frozen=True)
class Ranks:
    """Process number `rank` of `world` that train one student. device: where this one computes."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this is the process that logs, saves and speaks."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of everybody's values, on the CPU."""
        if self.world == 1:
            return values.cpu()
        total = values.detach().to(self.device, copy=True)
        dist.all_reduce(total)
        return total.cpu()

    def broadcast(self, value: Value | None) -> Value | None:
        """Return the first process's value."""
        if self.world == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0)
        told: Value | None = box[0]
        return told

    def copy_from_first(self, model: nn.Module) -> None:
        """Give everybody the first process's parameters and buffers."""
        if self.world > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0)

    def parallel(self, model: nn.Module, *, unused: bool) -> DistributedDataParallel:
        """Return the model with gradients that are the mean of everybody's.

        unused: whether it has parameters that its output does not depend on.
        """
        place = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=place, find_unused_parameters=unused)

    def speaks(self) -> bool:
        """Whether this process is the first to report how the run ended; the others stay silent then."""
        if self.world == 1:
            return True
        try:
            return int(dist.distributed_c10d._get_default_store().add(_TOLD, 1)) == 1  # noqa: SLF001  # no public way
        except (RuntimeError, ValueError):
            # The store has gone with the process that kept it: the first one, or its launcher.
            return self.rank <= 1


ALONE = Ranks()


def launched() -> bool:
    """Whether a launcher has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1 and "RANK" in os.environ


def leave(code: int) -> NoReturn:
    """End this process, one of several at once: after everything is saved and said, nothing is tidied up.

    Torch keeps the process group of a parallel model to the end, whatever is destroyed before, and with it
    threads of gloo. Python's own ending sometimes aborts on them ("terminate called without an active
    exception"), and the launcher would call a run that is finished a failure.
    """
    if launched():
        for stream in (sys.stdout, sys.stderr):
            # Whoever read it may have gone.
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


@contextlib.contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """Join the processes that the launcher has started, on the device of this one's own.

    device: of torch; ``cuda`` means one GPU for each process of a machine.
    """
    if not launched():
        yield Ranks(device=torch.device(device))
        return
    own = _own_device(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    with lost_processes_reported():
        dist.init_process_group("nccl" if own.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), own)
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def lost_processes_reported() -> Iterator[None]:
    """Turn torch's errors about processes that do not answer into one of ours."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if not any(word in text for word in _LOST):
            raise
        raise WorkerDiedError(
            "another process of this training run is gone or does not answer",
            hint=GO_ON,
        ) from error


def threads_of_a_rank(threads: int | None) -> int:
    """Return how many CPU threads to compute with: as asked, else this machine's cores, shared out."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1) if launched() else 1
    return threads or max(1, (os.cpu_count() or 1) // processes)


def _own_device(device: str) -> torch.device:
    wanted = torch.device(device)
    if wanted.type != "cuda":
        return wanted
    place, there = int(os.environ.get("LOCAL_RANK") or 0), torch.cuda.device_count()
    if ":" in device or place >= there:
        raise InvalidArgumentError(
            "several processes need a GPU each",
            expected="--device cuda, and at most as many processes as GPUs",
            got=f"--device {device}, process {place} of this machine, {there} GPUs",
        )
    return torch.device("cuda", place)
