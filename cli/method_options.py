"""Options shared by squeeze, recover and analyze: one network, and where to run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .teacher_options import DEFAULT_WEIGHTS, channels, check_device

if TYPE_CHECKING:
    from lpld_core.teachers.teacher import LoadedTeacher

F = TypeVar("F", bound=Callable[..., Any])


val_by_order_option = click.option(
    "--val-by-order",
    is_flag=True,
    help="The class folders of --val may have other names: they come in the same order.",
)


def network_options(role: str) -> Callable[[F], F]:
    """Add --ROLE, --ROLE-weights, --size, --mean, --std, --device and --threads."""

    def add(command: F) -> F:
        for option in (
            click.option("--threads", type=click.IntRange(1), help="CPU threads [default: all]."),
            click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, mps ..."),
            click.option(
                "--std", callback=channels, metavar="R,G,B", help="Normalisation, where the weights say none."
            ),
            click.option(
                "--mean",
                callback=channels,
                metavar="R,G,B",
                help="Normalisation, where the weights say none.",
            ),
            click.option(
                "--size",
                type=click.IntRange(1),
                help=f"Side of its images in pixels [default: the {role}'s].",
            ),
            click.option(
                f"--{role}-weights",
                "weights",
                default=DEFAULT_WEIGHTS,
                metavar="DEFAULT|random|FILE",
                help="A safetensors or torch file [default: those its makers publish].",
            ),
            click.option(
                f"--{role}",
                "network",
                required=True,
                metavar="NAME",
                help="resnet18, timm:NAME, small-resnet10:width=32,stem_stride=2 or package.module:factory.",
            ),
        ):
            command = option(command)
        return command

    return add


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
