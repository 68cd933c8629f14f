"""What all commands share: two consoles, number formats, and the one error handler."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from lpld_labels.errors import without_secrets

from .common_options import quiet_and_verbose
from .extras import missing_extra

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console


def stdout_console() -> Console:
    """Return the console for data (stdout)."""
    from rich.console import Console

    # Piped tables must not be folded at 80 columns: whoever reads them has no terminal to fit. Unless they
    # say how wide theirs is.
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else 120)


def stderr_console() -> Console:
    """Return the console for everything that is not data (stderr)."""
    from rich.console import Console

    return Console(stderr=True)


def print_json(document: dict[str, Any]) -> None:
    """Print a JSON document to stdout; addresses in it without passwords and queries."""
    click.echo(json.dumps(_public(document), indent=2, allow_nan=False))


def _public(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _public(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_public(inner) for inner in value]
    return without_secrets(value) if isinstance(value, str) else value


def print_line(text: str, *, err: bool = False) -> None:
    """Print a line of data (or, with err, of anything else) without passwords and queries of addresses."""
    click.echo(without_secrets(text), err=err)


def save_html(path: Path, data: bytes) -> None:
    """Write a page and say where it is."""
    from lpld_labels.inspect.page import save_page

    from .common_options import quiet

    save_page(path, data)
    if not quiet():
        click.echo(f"page saved as {path}", err=True)


def times_smaller(ratio: float) -> str:
    """Return how sizes compare, e.g. ``2.31x smaller`` or ``1.20x larger``."""
    return f"{1 / ratio:#.3g}x larger" if 0 < ratio < 1 else f"{ratio:#.3g}x smaller"


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


def run(group: click.Group) -> None:
    """Run the command line: library errors become one line and exit code 1, Ctrl-C exit code 130."""
    _open_streams()
    _leave(_exit_code(group))


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


def _exit_code(group: click.Group) -> int:
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
        message = missing_extra(error)
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
