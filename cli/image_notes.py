"""A first look at an image folder, before anything is written: is it one, and what of it is left out."""

from __future__ import annotations

from pathlib import Path

import click

from .common_options import quiet

SHOWN = 3


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
        shown = ", ".join(strangers[:SHOWN]) + (", ..." if len(strangers) > SHOWN else "")
        click.echo(f"note: {files} in {folder} passed over, no images by name: {shown}", err=True)
    return class_names(folder)
