"""Where decoded images are kept, so that workers decode each image once between them."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

import numpy as np

from lpld_labels.image_folder import class_names
from lpld_labels.images import ImageTable
from lpld_labels.replay import ImageStore

MEMORY_BYTES = 4 * 1024**3
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, used through tempfile


def open_images(
    root: str | os.PathLike[str],
    table: ImageTable,
    *,
    num_workers: int,
    cache_directory: str | os.PathLike[str] | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> ImageStore:
    """Open the image folder for a loader.

    With `cache_directory`, decoded images are kept there in a memory-mapped file, also for later runs.
    Without, they are kept in memory up to `memory_bytes`, shared by all workers where the system has
    room for that; images beyond it are decoded every time.
    """
    class_names(root)
    if cache_directory is not None or num_workers == 0:
        return ImageStore(root, table, memory_bytes=memory_bytes, cache_directory=cache_directory)
    needed = int((table.heights.astype(np.int64) * table.widths * 3).sum())
    if needed > memory_bytes or not _has_room(needed):
        return ImageStore(root, table, memory_bytes=memory_bytes // num_workers)
    shared = tempfile.mkdtemp(prefix="lpld-labels-", dir=_SHARED_MEMORY)
    store = ImageStore(root, table, cache_directory=shared)
    weakref.finalize(store, _remove, shared, os.getpid())
    return store


def _has_room(needed: int) -> bool:
    """Whether images may take this much shared memory without crowding out others."""
    return _SHARED_MEMORY.is_dir() and needed < shutil.disk_usage(_SHARED_MEMORY).free // 2


def _remove(directory: str, owner: int) -> None:
    # Workers made by fork hold a copy of the store; only the process that made the directory removes it.
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
