"""Options shared by squeeze, recover and analyze: one network, and where to run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from .common_options import together
from .teacher_options import (
    DEFAULT_WEIGHTS,
    NETWORKS,
    check_device,
    device_options,
    normalisation_options,
    size_option,
)

if TYPE_CHECKING:
    from lpld_core.teachers.teacher import LoadedTeacher

network_options = together(
    click.option("--teacher", "network", required=True, metavar="NAME", help=f"{NETWORKS}."),
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

    def prepare_machine(self) -> None:
        """Set the number of threads and refuse a device that is not there."""
        import torch

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        check_device(self.device)

    def load(self, *, classes: int | None = None) -> LoadedTeacher:
        """Load the network; refuse one with another class count."""
        from lpld_core.teachers.teacher import load_teacher

        return load_teacher(
            self.network,
            weights=self.weights,
            classes=classes,
            input_size=None if self.size is None else (self.size, self.size),
            mean=self.mean,
            std=self.std,
            device=self.device,
        )
