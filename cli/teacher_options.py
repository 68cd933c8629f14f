"""Options that say which teacher to use and where to run it, shared by several commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from lpld_core.teachers.ensemble import TeacherChoice

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_WEIGHTS = "DEFAULT"


def channels(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Parse three numbers separated by commas, one per colour channel."""
    del ctx, param
    if value is None:
        return None
    try:
        numbers = tuple(float(part) for part in value.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != 3:
        raise click.BadParameter(f"expected three numbers separated by commas, got '{value}'")
    return numbers


def teacher_options(command: F) -> F:
    """Add --teacher, --teacher-weights, --size, --mean and --std."""
    for option in (
        click.option(
            "--std", callback=channels, metavar="R,G,B", help="Normalisation, where the weights do not say."
        ),
        click.option(
            "--mean", callback=channels, metavar="R,G,B", help="Normalisation, where the weights do not say."
        ),
        click.option(
            "--size", type=click.IntRange(1), help="Side of a view in pixels [default: the teacher's]."
        ),
        click.option(
            "--teacher-weights",
            "weights",
            multiple=True,
            metavar="DEFAULT|random|FILE",
            help="A safetensors or torch file, one per --teacher [default: those its makers publish].",
        ),
        click.option(
            "--teacher",
            "teachers",
            multiple=True,
            metavar="NAME",
            help="resnet18, timm:NAME, small-resnet18:width=32 or package.module:factory. "
            "Give several for an ensemble.",
        ),
    ):
        command = option(command)
    return command


def image_cache_option(command: F) -> F:
    """Add --image-cache."""
    option = click.option(
        "--image-cache",
        type=click.Path(path_type=Path),
        help="Keep decoded images in this directory, shared by processes and runs [default: in memory].",
    )
    return option(command)


def machine_options(command: F) -> F:
    """Add --device, --amp and --threads."""
    for option in (
        click.option(
            "--threads", type=click.IntRange(1), help="CPU threads per process [default: all, shared out]."
        ),
        click.option("--amp", is_flag=True, help="Mixed precision: faster on GPUs, no longer bit-identical."),
        click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, mps ..."),
    ):
        command = option(command)
    return command


def teacher_choices(
    teachers: Sequence[str],
    weights: Sequence[str],
    *,
    size: int | None,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
) -> list[TeacherChoice]:
    """Pair each teacher with its weights."""
    from lpld_core.teachers.ensemble import TeacherChoice

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
