"""Entry point of ``lpld-labels``."""

from __future__ import annotations

import click

from .common_options import quiet_and_verbose
from .console import LazyGroup, run

LAZY_COMMANDS: dict[str, tuple[str, str]] = {
    "squeeze": (
        ".squeeze",
        "Gather class-wise BatchNorm statistics of a teacher: real images -> statistics.",
    ),
    "recover": (".recover", "Synthesise images from a teacher: statistics -> image folder."),
    "analyze": (".analyze", "Measure how diverse image folders are, side by side."),
    "build": (".build", "Label an image folder with a teacher: images -> pool."),
    "prune": (".prune", "Keep a part of the label batches: pool -> smaller pool."),
    "encode": (".encode", "Store labels in fewer bytes: pool -> pool of another codec."),
    "copy": (".copy", "Copy a pool, or a part of it, from anywhere to anywhere."),
    "merge": (".merge", "Put pools of the same images and teacher together: pools -> pool."),
    "pack": (".pack", "Put the images into a pool: pool + image folder -> one pool."),
    "unpack": (".unpack", "Write the image folder of a pool that carries its images."),
    "plan": (".plan", "Find the ratio and codec that fit a byte budget."),
    "train": (".train", "Train a student from a pool."),
    "inspect": (".inspect", "Show a pool's contents and size, its card or its recipe."),
    "report": (".report", "Write an HTML report on a pool, or on several side by side."),
    "verify": (".verify", "Check that a pool is whole and its labels are true."),
    "import": (".import_labels", "Turn an existing label folder into a pool, without running its pickles."),
    "export": (".export", "Write a pool as a label folder that older programs read."),
    "demo": (".demo", "Go the whole way on handwritten digits, without a download."),
}
"""Command name -> (module, one line of help). Modules are imported only when used."""


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from lpld_labels.version import __version__

        click.echo(f"lpld-labels {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    commands_by_module=LAZY_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, callback=_version, expose_value=False, is_eager=True, help="Print the version."
)
def group() -> None:
    """Soft labels for large-scale dataset distillation.

    \b
    A session, from real images to a student:
      lpld-labels squeeze imagenet/train stats.safetensors --teacher resnet18
      lpld-labels recover syn --teacher resnet18 --statistics stats.safetensors --ipc 10
      lpld-labels build syn pool --teacher resnet18 --ratio 40
      lpld-labels inspect pool
      lpld-labels train pool --images syn --val imagenet/val

    \b
    Each command explains itself with examples: lpld-labels COMMAND --help
    """


group.params += quiet_and_verbose()


def main() -> None:
    """Run the command line."""
    run(group)
