"""What commands share that write a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from .common_options import quiet

F = TypeVar("F", bound=Callable[..., Any])
_GREEDY = "--runs"


class GreedyCommand(click.Command):
    """A command whose ``--runs A B C`` takes all words up to the next option, as ``runs/*`` gives."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write ``--runs`` before each of its words; keep the words as given for who wants to show them."""
        ctx.obj = {"words": list(args)}
        spread: list[str] = []
        greedy = given = False
        for word in args:
            if word == _GREEDY:
                greedy, given = True, False
                continue
            if word.startswith("-"):
                spread += [_GREEDY] if greedy and not given else []
                greedy = False
            spread += [_GREEDY, word] if greedy else [word]
            given = greedy
        spread += [_GREEDY] if greedy and not given else []
        return super().parse_args(ctx, spread)


def runs_option(function: F) -> F:
    """Add --runs, which takes one directory or several."""
    return click.option(
        "--runs",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="DIR...",
        help="Run directories of train: loss, learning rate, accuracy. Give it last.",
    )(function)


def save_html(path: Path, data: bytes) -> None:
    """Write a page and say where it is."""
    from lpld_labels.inspect.pages.page import save_page

    save_page(path, data)
    if not quiet():
        click.echo(f"page saved as {path}", err=True)


def read_class_names(path: Path) -> list[str]:
    """Return the lines of a file."""
    from lpld_labels.errors import InvalidArgumentError

    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"cannot read class names: {error}", where=path) from None
