"""Training in several processes that a launcher (torchrun) starts and numbers by environment variables.

DistributedDataParallel exchanges gradients; `Ranks` exchanges the few other numbers of a step.
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
_REPORTED = "lpld/reported"
_LOST = ("gloo", "nccl", "connection", "broken pipe", "socket")
"""Words in torch's errors about a lost process; torch has no error class for them."""


@dataclass(frozen=True)
class Ranks:
    """Process `rank` of the `world` processes that train one student. device: device of this process."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this process logs, saves and reports."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over processes, on the CPU."""
        if self.world == 1:
            return values.cpu()
        total = values.detach().to(self.device, copy=True)
        dist.all_reduce(total)
        return total.cpu()

    def broadcast(self, value: Value | None) -> Value | None:
        if self.world == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0)
        received: Value | None = box[0]
        return received

    def copy_from_first(self, model: nn.Module) -> None:
        if self.world > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0)

    def parallel(self, model: nn.Module, *, unused: bool) -> DistributedDataParallel:
        """Return a model that averages gradients over processes. unused: some parameters get no gradient."""
        place = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=place, find_unused_parameters=unused)

    def speaks(self) -> bool:
        """Whether this process reports an error. True only in the first process that calls this."""
        if self.world == 1:
            return True
        try:
            return int(dist.distributed_c10d._get_default_store().add(_REPORTED, 1)) == 1  # noqa: SLF001  # no public way
        except (RuntimeError, ValueError):
            # The process that hosted the store (the first process or its launcher) is gone.
            return self.rank <= 1


ALONE = Ranks()


def launched() -> bool:
    """Whether this is one of several processes that a launcher started."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1 and "RANK" in os.environ


def leave(code: int) -> NoReturn:
    """Exit; if a launcher started several processes, skip Python's shutdown.

    Torch keeps gloo's threads until exit, and Python's shutdown sometimes aborts because of them ("terminate
    called without an active exception"). The launcher would then report a finished run as failed.
    """
    if launched():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the reader may be gone
                stream.flush()
        os._exit(code)
    sys.exit(code)


@contextlib.contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """Join the other launched processes. device: ``cuda`` gives each process of a machine its own GPU."""
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
    """Raise WorkerDiedError for torch's errors about processes that do not respond."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if not any(word in text for word in _LOST):
            raise
        raise WorkerDiedError(
            "another process of this training run died or does not respond",
            hint="run the same command again, with any number of processes: it resumes from its last save, "
            "at most a minute ago",
        ) from error


def threads_of_a_rank(threads: int | None) -> int:
    """Return `threads`, or if it is None, this process's share of the machine's cores."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1) if launched() else 1
    return threads or max(1, (os.cpu_count() or 1) // processes)


def _own_device(device: str) -> torch.device:
    wanted = torch.device(device)
    if wanted.type != "cuda":
        return wanted
    place, there = int(os.environ.get("LOCAL_RANK") or 0), torch.cuda.device_count()
    if ":" in device or place >= there:
        raise InvalidArgumentError(
            "each process requires its own GPU",
            expected="--device cuda, and at most as many processes as GPUs",
            got=f"--device {device}, process {place} of this machine, {there} GPUs",
        )
    return torch.device("cuda", place)
