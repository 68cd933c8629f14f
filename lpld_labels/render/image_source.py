"""Where image files come from: a folder, or the pool itself where it carries them.

Whoever needs images asks `find_images` for them and need not know which it is. Either gives an image's bytes
by its row of the image table, known to be those that were labelled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from lpld_labels.errors import ImageMismatchError, InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.digests import image_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.pool.packed_images import packed_images
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.image_folder import class_names, map_in_threads, read_file

Location = str | os.PathLike[str]


class ImageSource(Protocol):
    """Image files by row of an image table. Can be pickled and survives fork; threads may share one."""

    @property
    def table(self) -> ImageTable:
        """What the images are."""

    def read(self, row: int) -> bytes:
        """Return one image file, known to be the one that was labelled."""

    def place(self, row: int) -> str:
        """Return where an image is, for messages."""

    def stamp(self, row: int) -> str:
        """Return what tells versions of an image apart whose digest the table does not know."""


class FolderImages:
    """Images below a folder."""

    def __init__(self, root: Location, table: ImageTable) -> None:
        self.root = Path(root)
        self.table = table

    def read(self, row: int) -> bytes:
        """Return one image file."""
        path = self.root / self.table.paths[row]
        if not path.is_file():
            raise ImageMismatchError(
                f"image {row} of the labelled images is missing",
                where=path,
                hint="give the image folder that the pool was built from",
            )
        data = read_file(path)
        wanted = self.table.digests[row]
        if wanted is not None and image_digest(data) != wanted:
            raise ImageMismatchError(
                f"image {row} has changed since it was labelled",
                where=path,
                expected=f"digest {wanted.hex()}",
                got=image_digest(data).hex(),
                hint="restore the labelled images or label these anew",
            )
        return data

    def place(self, row: int) -> str:
        """Return the path of an image."""
        return str(self.root / self.table.paths[row])

    def stamp(self, row: int) -> str:
        """Return path, size and time of change of an image that is there."""
        path = self.table.paths[row]
        try:
            status = (self.root / path).stat()
        except OSError:
            return ""
        return f"{path}:{status.st_size}:{status.st_mtime_ns}"


def find_images(pool: PoolReader, folder: Location | None = None) -> ImageSource:
    """Return the images of a pool: those in a folder, where one is given, else those that it carries."""
    if folder is not None:
        class_names(folder)
        return FolderImages(folder, pool.images)
    packed = packed_images(pool)
    if packed is None:
        raise no_images(pool.location)
    return packed


def no_images(pool: str) -> InvalidArgumentError:
    """Return what is said where images are wanted of a pool that does not carry them."""
    return InvalidArgumentError(
        "the pool does not carry its images",
        where=pool,
        hint="give the labelled image folder (--images), or pack the pool (lpld-labels pack)",
    )


def check_images(
    source: ImageSource, *, indices: Iterable[int] | None = None, progress: Progress | None = None
) -> None:
    """Prove that images are those of the table, by their content digests.

    indices: rows to check, all of them unless given. Rows without a digest are checked for being there.
    Raises an error that names the first file that is missing or changed.
    """
    rows = range(len(source.table)) if indices is None else [int(index) for index in indices]
    for done, _ in enumerate(map_in_threads(source.read, rows), 1):
        if progress is not None:
            progress(done, len(rows))
