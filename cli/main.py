"""Entry point of ``lpld-labels``."""

from __future__ import annotations

import click

from .console import LazyGroup, run

LAZY_COMMANDS: dict[str, tuple[str, str]] = {
    "build": (".build", "Label an image folder with a teacher: images -> pool."),
    "prune": (".prune", "Keep a part of the label batches: pool -> smaller pool."),
    "train": (".train", "Train a student from a pool."),
    "inspect": (".inspect", "Say what a pool is and what it weighs."),
    "verify": (".verify", "Check that a pool is whole."),
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
    """Soft labels for large-scale dataset distillation: build, prune, inspect, verify.

    \b
    lpld-labels inspect POOL          what is in it, what it weighs
    lpld-labels verify POOL           are all bytes as they were written
    lpld-labels COMMAND --help        options and examples of a command
    """


def main() -> None:
    """Run the command line."""
    run(group)
