"""A picture of recovered images: some classes, each by every method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lpld_core.images import evenly
from lpld_core.recover.folder import contact_sheet

CLASSES = 4
IMAGES = 10


def draw_sheet(folders: Sequence[Path], path: Path) -> None:
    """Draw the first images of a few classes: a row per class and folder. folders: of image classes.

    The method is the first word of a folder's name.
    """
    classes = sorted(entry.name for entry in folders[0].iterdir() if entry.is_dir())
    rows = [(folder, classes[number]) for number in evenly(len(classes), CLASSES) for folder in folders]
    sheet = contact_sheet(
        [
            (f"{name}, {folder.name.split('-')[0]}", sorted((folder / name).iterdir())[:IMAGES])
            for folder, name in rows
        ]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sheet)
