"""What several commands share: arguments, plain options, and notes about inputs and outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from lpld_labels.errors import without_secrets

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


def json_option(instead_of: str = "a table") -> Decorator[Any]:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print JSON instead of {instead_of}.")


def preset_option(*, without: str) -> Decorator[Any]:
    """Add --preset, of the commands that have published settings. without: what holds if none is named."""
    from lpld_core.train.settings import EXPERIMENT_PRESETS

    return click.option(
        "--preset",
        type=click.Choice(list(EXPERIMENT_PRESETS)),
        show_default=without,
        help="Settings of a published experiment; the options below replace parts of it.",
    )


def progress_as_json() -> bool:
    """Whether the program was called with ``--progress json``."""
    return bool(_program_option("progress") == "json")


def quiet() -> bool:
    """Whether the program was called with ``-q``: print results and errors only."""
    return bool(_program_option("quiet"))


def _program_option(name: str) -> Any:
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_root().params.get(name)


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


@contextlib.contextmanager
def says_if_stopped(out: Path | str) -> Iterator[None]:
    """Tell on Ctrl-C that the same command resumes."""
    try:
        yield
    except KeyboardInterrupt:
        where = without_secrets(str(out))
        click.echo(f"stopped: finished work is safe in {where}; run the same command again", err=True)
        raise


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
