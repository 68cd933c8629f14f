"""Writing the image folder of a pool that carries its images, byte for byte.

The folder holds the images and `unpack.json`, which says whose they are. It is written first, so a folder
with it is ours, whole or not: interrupted work goes on, and only such a folder is ever replaced. Paths come
from the image table, whose rules keep them below the folder on every system.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lpld_labels.errors import PoolConflictError
from lpld_labels.files.storage import TEMPORARY, write_atomically, write_errors
from lpld_labels.format.digests import image_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.jobs.job import Progress
from lpld_labels.pool.packed_images import PackedImages
from lpld_labels.replay.image_folder import EXTENSIONS, map_in_threads
from lpld_labels.rewriting.outputs import OVERWRITE_HINT, local_directory, sole_writer

RECORD_FILE = "unpack.json"


def unpack_images(
    images: PackedImages,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write all images below `out`; return how many were written because they were not there yet.

    overwrite: replace the images of another pool that were unpacked there.
    """
    folder = local_directory(out)
    record = {"images": len(images.table), "image_table": images.table.digest().hex()}
    _require_free(folder, record, overwrite=overwrite)
    with sole_writer(folder):
        _prepare(folder, images.table, record, overwrite=overwrite)
        written = 0
        rows = range(len(images.table))
        for done, new in enumerate(map_in_threads(lambda row: _write(images, row, folder), rows), 1):
            written += new
            if progress is not None:
                progress(done, len(rows))
    return written


def _write(images: PackedImages, row: int, folder: Path) -> bool:
    """Write one image unless it is there; return whether it was written."""
    path = folder / images.table.paths[row]
    if path.is_file() and image_digest(path.read_bytes()) == images.table.digests[row]:
        return False
    data = images.read(row)
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data, within=folder)
    return True


def _require_free(folder: Path, record: dict[str, Any], *, overwrite: bool) -> None:
    """Refuse a folder that was not unpacked here, and one of other images unless it is to be replaced."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    path = folder / RECORD_FILE
    if not path.is_file():
        hint = "choose another path, or move it away: --overwrite replaces only what we wrote"
        raise PoolConflictError("something is already here", where=folder, hint=hint)
    if from_json(path.read_bytes(), where=str(path)) != record and not overwrite:
        raise PoolConflictError("images of another pool are already here", where=folder, hint=OVERWRITE_HINT)


def _prepare(folder: Path, table: ImageTable, record: dict[str, Any], *, overwrite: bool) -> None:
    """Leave the record; clear away what a killed process was writing, and images that are to be replaced."""
    path = folder / RECORD_FILE
    with write_errors(folder):
        for left in sorted(folder.glob(f"{TEMPORARY}*")):
            left.unlink()
        if path.is_file() and from_json(path.read_bytes(), where=str(path)) == record:
            known = {*table.paths, RECORD_FILE}
            _refuse_others(folder, known.__contains__)
            return
        if overwrite and path.is_file():
            _refuse_others(folder, lambda name: name == RECORD_FILE or name.lower().endswith(EXTENSIONS))
            for entry in sorted(folder.iterdir()):
                if entry != path:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    write_atomically(path, to_json(record), within=folder)


def _refuse_others(folder: Path, ours: Callable[[str], bool]) -> None:
    """Refuse files that are none of ours, and links: what they lead to is not ours to write or delete."""
    for directory, folders, names in sorted(os.walk(folder)):
        for path in (Path(directory, name) for name in sorted((*folders, *names))):
            is_file = path.name in names
            if path.is_symlink() or (is_file and not ours(path.relative_to(folder).as_posix())):
                raise PoolConflictError(
                    "this is none of the images that were unpacked here",
                    where=path,
                    hint="move it away, or choose another path",
                )
