"""What several commands share: arguments, plain options, and notes about inputs and outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
_SHOWN_FILES = 3

# Neither has to exist for click: a pool may be a URI, and the library says better what is wrong. The types
# are there so that the shell completes directories and files.
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(path_type=Path)
pool_argument = click.argument("pool", type=click.Path(file_okay=False))
out_argument = click.argument("out", type=click.Path())

overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace an existing output that lpld-labels wrote."
)
val_by_order_option = click.option(
    "--val-by-order",
    is_flag=True,
    help="The class folders of --val may have other names: they come in the same order.",
)
threads_option = click.option(
    "--threads", type=click.IntRange(1), help="CPU threads per process.  [default: all, shared out]"
)


def json_option(instead_of: str = "a table") -> Decorator[Any]:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print JSON instead of {instead_of}.")


def jobs_option(what: str = "Processes.") -> Decorator[Any]:
    """Add -j, --jobs."""
    return click.option("-j", "--jobs", type=click.IntRange(1), default=1, show_default=True, help=what)


def preset_option(*, without: str) -> Decorator[Any]:
    """Add --preset, of the commands that have published settings. without: what holds if none is named."""
    from lpld_core.train.presets import EXPERIMENT_PRESETS

    return click.option(
        "--preset",
        type=click.Choice(list(EXPERIMENT_PRESETS)),
        show_default=without,
        help="Settings of a published experiment; the options below replace parts of it.",
    )


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep what -q, -v or --progress said, wherever it stood."""
    if value:
        ctx.meta[f"lpld_labels.{param.name}"] = value
        if param.name == "verbose":
            import logging

            logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")


def quiet_and_verbose() -> list[click.Option]:
    """Return -q, -v and --progress, which may stand before or after the command's name."""
    how: dict[str, Any] = {"expose_value": False, "callback": _remember}
    return [
        click.Option(["-q", "--quiet"], is_flag=True, help="Print errors only on stderr.", **how),
        click.Option(["-v", "--verbose"], is_flag=True, help="Print the library's log on stderr.", **how),
        click.Option(
            ["--progress"],
            type=click.Choice(["auto", "json"]),
            help="Progress on stderr: for people, or a line of JSON every second.",
            **how,
        ),
    ]


def progress_as_json() -> bool:
    """Whether progress was asked for as lines of JSON (``--progress json``)."""
    context = click.get_current_context(silent=True)
    return context is not None and context.meta.get("lpld_labels.progress") == "json"


def quiet() -> bool:
    """Whether the command was asked to say nothing but results and errors (``-q``)."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get("lpld_labels.quiet"))


@contextlib.contextmanager
def says_if_finished(file: Path) -> Iterator[None]:
    """Say that nothing was done if a job ends with the very file that was there before it.

    file: what is written last: a pool's manifest, a run's result, a folder that is put in its place.
    """
    before = _identity(file)
    yield
    if before is not None and _identity(file) == before and not quiet():
        where = file if file.is_dir() else file.parent
        click.echo(f"{where}: finished before, nothing was left to do", err=True)


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def look_over(folder: Path) -> list[str]:
    """Return the class names; refuse a folder that cannot be used, and say which of its files are no images.

    One image of each kind is decoded, so that what cannot be read at all is told at once.
    """
    from lpld_labels.render.images import class_names, list_images, passed_over, try_each_kind

    paths, _ = list_images(folder)
    try_each_kind(folder, paths)
    strangers = passed_over(folder)
    if strangers and not quiet():
        files = f"{len(strangers)} files" if len(strangers) > 1 else "1 file"
        shown = ", ".join(strangers[:_SHOWN_FILES]) + (", ..." if len(strangers) > _SHOWN_FILES else "")
        click.echo(f"note: {files} in {folder} passed over, no images by name: {shown}", err=True)
    return class_names(folder)
