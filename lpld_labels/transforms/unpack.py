"""Write the image folder of a pool that carries its images, byte for byte.

Images are written below FOLDER.partial, which is then renamed. Paths come from the image table, whose rules
keep them below the folder on every system.
"""

from __future__ import annotations

import os
from pathlib import Path

from lpld_labels.errors import PoolConflictError
from lpld_labels.exec.job import Progress
from lpld_labels.format.digests import image_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.io.storage import refuse_links, write_atomically, write_errors
from lpld_labels.pool.packing import PackedImages
from lpld_labels.pool.unfinished import Unfinished, finish, unfinished
from lpld_labels.render.images import map_in_threads
from lpld_labels.transforms.outputs import local_directory


def unpack_images(
    images: PackedImages, out: str | os.PathLike[str], *, progress: Progress | None = None
) -> int:
    """Write all images to a new folder; return how many were written because they were not there yet."""
    folder, table = local_directory(out), images.table
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if _holds(folder, table):
            finish(folder)
            return 0
        raise PoolConflictError("something is already here", where=folder, hint="choose another path")
    with unfinished(folder) as work:
        work.begin({"unpack": table.digest().hex()})
        written = 0
        rows = range(len(table))
        for done, new in enumerate(map_in_threads(lambda row: _write(images, row, work), rows), 1):
            written += new
            if progress is not None:
                progress(done, len(rows))
        with write_errors(folder):
            work.pool.rename(folder)
            work.delete()
    return written


def _write(images: PackedImages, row: int, work: Unfinished) -> bool:
    """Write one image unless it is there; return whether it was written."""
    path = work.pool / images.table.paths[row]
    refuse_links([path.parent, path])
    if path.is_file() and image_digest(path.read_bytes()) == images.table.digests[row]:
        return False
    data = images.read(row)
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data, within=work.directory)
    return True


def _holds(folder: Path, table: ImageTable) -> bool:
    """Whether a folder has just the images of a table, unchanged."""
    if not folder.is_dir():
        return False
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    expected = dict(zip(table.paths, table.digests, strict=True))
    return found.keys() == expected.keys() and all(
        not path.is_symlink() and image_digest(path.read_bytes()) == expected[name]
        for name, path in found.items()
    )
