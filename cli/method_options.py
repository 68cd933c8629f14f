"""Options shared by squeeze, recover and analyze: one network, and where to run it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from lpld_core.settings import DEFAULT_WEIGHTS

from .common_options import together
from .engine_options import EngineOptions
from .parameters import TEXT
from .teacher_options import (
    NETWORKS,
    check_device,
    device_options,
    normalisation_options,
    size_option,
)

if TYPE_CHECKING:
    from lpld_core.teachers.teacher import LoadedTeacher, Machine

network_options = together(
    click.option("--teacher", "network", type=TEXT, required=True, metavar="NAME", help=f"{NETWORKS}."),
    click.option(
        "--teacher-weights",
        "weights",
        type=click.Path(),
        default=DEFAULT_WEIGHTS,
        metavar="DEFAULT|random|FILE",
        help="A safetensors or torch file [default: those its makers publish].",
    ),
    size_option("its images"),
    normalisation_options(),
    device_options,
)
"""--teacher, --teacher-weights, --size, --mean, --std, --device and --threads."""
val_by_order_option = click.option(
    "--val-by-order",
    is_flag=True,
    help="The class folders of --val may have other names: they come in the same order.",
)


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """What the command line said about the network."""

    network: str
    weights: str
    size: int | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    device: str
    threads: int | None

    def prepare_machine(self, workers: EngineOptions | None = None) -> Machine:
        """Set the number of threads, refuse a device that is not there; return what workers compute with.

        workers: who does the work, if not this process alone.
        """
        import torch

        from lpld_core.teachers.teacher import Machine

        workers = workers or EngineOptions()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if workers.engine == "local":
            check_device(self.device)
        share = max(1, (os.cpu_count() or 1) // (workers.jobs or 1))
        return Machine(device=self.device, threads=self.threads or workers.threads or share)

    def load(self, *, classes: int | None = None, device: str | None = None) -> LoadedTeacher:
        """Load the network; refuse one with another class count.

        device: where, if not where the command line says.
        """
        from lpld_core.teachers.teacher import load_teacher

        return load_teacher(
            self.network,
            weights=self.weights,
            classes=classes,
            input_size=None if self.size is None else (self.size, self.size),
            mean=self.mean,
            std=self.std,
            device=device or self.device,
        )
