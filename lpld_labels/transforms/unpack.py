"""Writing the image folder of a pool that carries its images, byte for byte.

The folder holds the images, `unpack.json`, which says whose they are, and `unpack.sha256`, which lists them.
Both are written first, so a folder with the former is ours, whole or not: interrupted work goes on, and only
what stands on the list, unchanged, is ever replaced. Paths come from the image table, whose rules keep them
below the folder on every system.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container
from pathlib import Path
from typing import Any

from lpld_labels.errors import PoolConflictError
from lpld_labels.exec.job import Progress
from lpld_labels.format.digests import bytes_digest, image_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.io.storage import TEMPORARY, write_atomically, write_errors
from lpld_labels.pool.packed_images import PackedImages
from lpld_labels.render.images import map_in_threads
from lpld_labels.transforms.outputs import OVERWRITE_HINT, local_directory, sole_writer

RECORD_FILE = "unpack.json"
LIST_FILE = "unpack.sha256"


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
    listing = _listing(images.table)
    record = {
        "images": len(images.table),
        "image_table": images.table.digest().hex(),
        "list": bytes_digest(listing),
    }
    _require_free(folder, record, overwrite=overwrite)
    with sole_writer(folder):
        _prepare(folder, listing, record, overwrite=overwrite)
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
    # A killed process may have left the first file on its way, and nothing else.
    if not folder.exists() or (folder.is_dir() and all(map(_is_temporary, folder.iterdir()))):
        return
    path = folder / RECORD_FILE
    if not path.is_file():
        hint = "choose another path, or move it away: --overwrite replaces only what we wrote"
        raise PoolConflictError("something is already here", where=folder, hint=hint)
    if from_json(path.read_bytes(), where=str(path)) != record and not overwrite:
        raise PoolConflictError("images of another pool are already here", where=folder, hint=OVERWRITE_HINT)


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(TEMPORARY) and path.is_file() and not path.is_symlink()


def _prepare(folder: Path, listing: bytes, record: dict[str, Any], *, overwrite: bool) -> None:
    """Leave list and record; clear away what a killed process was writing, and images to be replaced."""
    path = folder / RECORD_FILE
    with write_errors(folder):
        for left in sorted(filter(_is_temporary, folder.iterdir())):
            left.unlink()
        if path.is_file() and from_json(path.read_bytes(), where=str(path)) == record:
            _refuse_others(folder, _listed(listing))
        elif overwrite and path.is_file():
            _delete_unpacked(folder)
    write_atomically(path, to_json(record), within=folder)
    write_atomically(folder / LIST_FILE, listing, within=folder)


def _delete_unpacked(folder: Path) -> None:
    """Delete the images that were unpacked here; refuse where there is anything else, or one was changed."""
    path = folder / LIST_FILE
    old = from_json((folder / RECORD_FILE).read_bytes(), where=str(folder / RECORD_FILE))
    listing = path.read_bytes() if path.is_file() else b""
    if not isinstance(old, dict) or old.get("list") != bytes_digest(listing):
        raise PoolConflictError(
            "nobody knows which images were unpacked here",
            where=path,
            hint="delete the folder yourself if nothing in it is needed, or choose another path",
        )
    images = _listed(listing)
    _refuse_others(folder, images)
    for name, digest in images.items():
        image = folder / name
        if image.is_file() and image_digest(image.read_bytes()).hex() != digest:
            raise PoolConflictError(
                "this image was changed after it was unpacked",
                where=image,
                hint="move it away, or choose another path",
            )
    for name in images:
        (folder / name).unlink(missing_ok=True)
    for directory, _, _ in sorted(os.walk(folder), reverse=True):
        with contextlib.suppress(OSError):
            Path(directory).rmdir()


def _listing(table: ImageTable) -> bytes:
    """Return a line per image: its digest and its path, neither of which has a space before the first one."""
    return b"".join(
        f"{(digest or b'').hex()} {path}\n".encode()
        for path, digest in zip(table.paths, table.digests, strict=True)
    )


def _listed(listing: bytes) -> dict[str, str]:
    """Return the digests of a list by path."""
    lines = (line.partition(" ") for line in listing.decode().splitlines())
    return {path: digest for digest, _, path in lines}


def _refuse_others(folder: Path, images: Container[str]) -> None:
    """Refuse files that are none of these, and links: what they lead to is not ours to write or delete."""
    for directory, folders, names in sorted(os.walk(folder)):
        for path in (Path(directory, name) for name in sorted((*folders, *names))):
            name = path.relative_to(folder).as_posix()
            known = path.name in folders or name in images or name in (RECORD_FILE, LIST_FILE)
            if path.is_symlink() or not known:
                raise PoolConflictError(
                    "this is none of the images that were unpacked here",
                    where=path,
                    hint="move it away, or choose another path",
                )
