"""Entry point of ``lpld-labels``: command list, global options, and errors as exit codes."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

import click

from lpld_labels.errors import LabelPoolError, UsageError, extras_required, without_secrets
from lpld_labels.version import __version__

LAZY_COMMANDS: dict[str, str] = {
    "squeeze": "Compute per-class BatchNorm statistics of a teacher: real images -> statistics.",
    "recover": "Synthesise images from a teacher: statistics -> image folder.",
    "analyze": "Compare the diversity of image folders with real images.",
    "build": "Label an image folder with a teacher: images -> pool.",
    "prune": "Keep some of the label batches: pool -> smaller pool.",
    "encode": "Store labels in fewer bytes: pool -> pool with another codec.",
    "copy": "Copy a pool to or from an address, merge pools, add or extract images.",
    "plan": "Find the prune ratio and codec that fit a byte budget.",
    "train": "Train a student from a pool.",
    "inspect": "Show a pool's contents and size, its card or its recipe.",
    "report": "Write an HTML report on a pool, or compare several pools.",
    "verify": "Check that a pool is intact and its labels are correct.",
    "doctor": "Check this machine, and measure what limits training on it.",
    "import": "Turn a label folder of another program into a pool; its pickles are not executed.",
    "export": "Write a pool as a label folder that older programs read.",
}
"""Command name -> one line of help. Each command is in the module of that name."""


class LazyGroup(click.Group):
    """Import a command's module only when the command is used."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # If a command is misspelt, click suggests names from this dict.
        self.commands = {name: click.Command(name) for name in LAZY_COMMANDS}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of a typical session."""
        return list(LAZY_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LAZY_COMMANDS:
            return None
        module = "import_labels" if cmd_name == "import" else cmd_name  # a module cannot be named import
        command: click.Command = importlib.import_module(f".{module}", __package__).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(LAZY_COMMANDS.items()))


def _local(word: str) -> str:
    """Replace a ``file://`` address by its path, also after ``--option=``."""
    from lpld_labels.io.addresses import local_path

    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{equals}{local_path(value)}" if value.startswith("file://") else word


def main() -> None:
    """Run the command line. Library errors print one line. Exit codes: error 1, usage error 2, Ctrl-C 130."""
    _open_streams()
    code = _exit_code()
    # Only `train` runs in several processes, and it imports torch.
    if "RANK" in os.environ and "torch" in sys.modules:
        from lpld_core.train.ranks import leave

        leave(code)
    sys.exit(code)


def _open_streams() -> None:
    """Open closed streams (``>&-``) on the null device, so that no other file gets their descriptors."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _exit_code() -> int:
    code = 1
    try:
        with extras_required():
            found = group.main(args=[_local(word) for word in sys.argv[1:]], standalone_mode=False)
        return found if isinstance(found, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except LabelPoolError as error:
        message, code = str(error), 2 if isinstance(error, UsageError) else 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        # The reader of the pipe (head, less) is gone.
        sys.stderr.close()
        return 0
    except OSError as error:
        # The library does not check for this error, e.g. a name that is too long or a symlink loop.
        message = without_secrets(f"{error.filename or 'this machine'}: {error.strerror or error}")
    click.echo(f"error: {message}", err=True)
    return code


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option("-q", "--quiet", is_flag=True, help="Print only errors on stderr.")
@click.option("-v", "--verbose", is_flag=True, help="Print the library's log on stderr.")
@click.option(
    "--progress",
    type=click.Choice(["auto", "json"]),
    default="auto",
    help="Progress on stderr: auto is a bar or text lines, json is one JSON line per second.",
)
@click.version_option(__version__, message="lpld-labels %(version)s")
def group(quiet: bool, verbose: bool, progress: str) -> None:
    """Soft labels for large-scale dataset distillation.

    \b
    A session, from real images to a student:
      lpld-labels squeeze imagenet/train stats.safetensors --teacher resnet18
      lpld-labels recover syn --teacher resnet18 --statistics stats.safetensors --ipc 10
      lpld-labels build syn pool --teacher resnet18 --ratio 40
      lpld-labels inspect pool
      lpld-labels train pool --images syn --val imagenet/val

    \b
    Help with examples: lpld-labels COMMAND --help. The options below go before COMMAND:
    lpld-labels -q build ...
    """
    del progress  # console.py reads it from the context
    handler = _Messages()
    if verbose:
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    for name in ("lpld_core", "lpld_labels"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.ERROR if quiet else logging.INFO if verbose else logging.WARNING)
    logging.getLogger("lpld_labels.reuse").setLevel(logging.ERROR if quiet else logging.INFO)


class _Messages(logging.Handler):
    """Prints the library's log to stderr, above progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(self.format(record), err=True)
