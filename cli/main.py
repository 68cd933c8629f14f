"""Entry point of ``lpld-labels``: the commands, and the one place that turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import click

from .common import quiet_and_verbose
from .console import print_line

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
    "copy": (".copy", "Copy a pool from anywhere to anywhere, several into one, images in or out."),
    "plan": (".plan", "Find the ratio and codec that fit a byte budget."),
    "train": (".train", "Train a student from a pool."),
    "inspect": (".inspect", "Show a pool's contents and size, its card or its recipe."),
    "report": (".report", "Write an HTML report on a pool, or on several side by side."),
    "verify": (".verify", "Check that a pool is whole and its labels are true."),
    "import": (".import_labels", "Turn an existing label folder into a pool, without running its pickles."),
    "export": (".export", "Write a pool as a label folder that older programs read."),
}
"""Command name -> (module, one line of help). Modules are imported only when used."""
EXTRAS = {
    "torch": "torch",
    "torchvision": "torch",
    "safetensors": "torch",
    "ray": "ray",
    "matplotlib": "demo",
    "mlxtend": "demo",
}
"""Top-level module -> extra of `pyproject.toml` that installs it."""


def _missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return one line that says what to install; None where the module is of no extra of ours."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    if extra is None:
        return None
    return f"this command needs {module}, which is not installed; pip install 'lpld-labels[{extra}]'"


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command is asked for."""

    def __init__(self, *args: Any, commands_by_module: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = commands_by_module

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return command names in the order of a typical session."""
        return list(self._lazy)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a name that is nearly one is answered with it."""
        if args and args[0] not in self._lazy and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], self._lazy, n=2)
            hint = f" Did you mean {' or '.join(near)}?" if near else f" See {ctx.command_path} --help."
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in self._lazy:
            return None
        import importlib

        module = importlib.import_module(self._lazy[cmd_name][0], package=__package__)
        command: click.Command = module.command
        if not any("--quiet" in param.opts for param in command.params):
            command.params += quiet_and_verbose()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their one-line help, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._lazy.items()])


def _local(word: str) -> str:
    """Return a word with the path in the place of a ``file://`` address, also behind ``--option=``."""
    from lpld_labels.io.addresses import local_path

    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{equals}{local_path(value)}" if value.startswith("file://") else word


def main() -> None:
    """Run the command line: library errors become one line and exit code 1, Ctrl-C exit code 130."""
    _open_streams()
    _leave(_exit_code())


def _open_streams() -> None:
    """Put the null device where a stream was closed (``>&-``): the next file would take its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _leave(code: int) -> NoReturn:
    # Only who trains may be one of several processes, and has imported torch.
    if "RANK" in os.environ and "torch" in sys.modules:
        from lpld_core.train.ranks import leave

        leave(code)
    sys.exit(code)


def _exit_code() -> int:
    from lpld_labels.errors import LabelPoolError

    try:
        found = group.main(args=[_local(word) for word in sys.argv[1:]], standalone_mode=False)
        code = found if isinstance(found, int) else 0
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except LabelPoolError as error:
        click.echo(f"error: {error}", err=True)
        code = 1
    except ModuleNotFoundError as error:
        message = _missing_extra(error)
        if message is None:
            raise
        click.echo(f"error: {message}", err=True)
        code = 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = 130
    except BrokenPipeError:
        # The reader of a pipe (head, less) has gone; there is nobody left to tell.
        sys.stderr.close()
        code = 0
    except OSError as error:
        # What a path or a disk refuses before the library looks at it: a name too long, links in a circle.
        print_line(f"error: {error.filename or 'this machine'}: {error.strerror or error}", err=True)
        code = 1
    return code


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
