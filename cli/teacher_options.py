"""Options that say which teacher to use and where to run it, shared by several commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from lpld_core.settings import DEFAULT_WEIGHTS, TeacherChoice

from .common_options import FOLDER, Decorator, together
from .parameters import CHANNELS, TEXT

NETWORKS = "resnet18, timm:NAME, small-resnet18:width=32 or package.module:factory"


def normalisation_options(when: str = "where the weights do not say") -> Decorator[Any]:
    """Add --mean and --std."""
    return together(
        *(click.option(name, type=CHANNELS, help=f"Normalisation, {when}.") for name in ("--mean", "--std"))
    )


def size_option(of: str) -> Decorator[Any]:
    """Add --size."""
    return click.option(
        "--size", type=click.IntRange(1), help=f"Side of {of} in pixels [default: the teacher's]."
    )


image_cache_option = click.option(
    "--image-cache",
    type=FOLDER,
    help="Keep decoded images in this directory, shared by processes and runs [default: in memory].",
)
threads_option = click.option(
    "--threads", type=click.IntRange(1), help="CPU threads per process.  [default: all, shared out]"
)
device_options = together(
    click.option("--device", type=TEXT, default="cpu", show_default=True, help="cpu, cuda, cuda:1, mps ..."),
    threads_option,
)
machine_options = together(
    device_options,
    click.option("--amp", is_flag=True, help="Mixed precision: faster on GPUs, no longer bit-identical."),
)
teacher_options = together(
    click.option(
        "--teacher",
        "teachers",
        type=TEXT,
        multiple=True,
        metavar="NAME",
        help=f"{NETWORKS}. Give several for an ensemble.",
    ),
    click.option(
        "--teacher-weights",
        "weights",
        type=click.Path(),
        multiple=True,
        metavar="DEFAULT|random|FILE",
        help="A safetensors or torch file, one per --teacher [default: those its makers publish].",
    ),
    size_option("a view"),
    normalisation_options(),
)


def teacher_choices(
    teachers: Sequence[str],
    weights: Sequence[str],
    *,
    size: int | None,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
) -> list[TeacherChoice]:
    """Pair each teacher with its weights."""
    if not teachers:
        raise click.UsageError("Missing option '--teacher'.")
    if weights and len(weights) != len(teachers):
        raise click.UsageError(
            f"give --teacher-weights once per --teacher ({len(teachers)} times), got {len(weights)}"
        )
    files = list(weights) or [DEFAULT_WEIGHTS] * len(teachers)
    side = None if size is None else (size, size)
    return [
        TeacherChoice(name=name, weights=file, input_size=side, mean=mean, std=std)
        for name, file in zip(teachers, files, strict=True)
    ]


def check_device(device: str) -> None:
    """Refuse a device that is not there, before anything else is done."""
    import torch

    from lpld_core.networks.weights import first_line

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = first_line(error)
        raise click.BadParameter(f"'{device}' is not usable here: {reason}", param_hint="--device") from None
