"""Where decoded images are kept, so that workers decode each image once between them."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
import weakref
from pathlib import Path

import filelock
import numpy as np

from lpld_labels.render import ImageStore
from lpld_labels.render.image_source import FolderImages, ImageSource
from lpld_labels.transforms.outputs import require_apart

MEMORY_BYTES = 4 * 1024**3
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # the file system in memory; names in it are random
_PREFIX = "lpld-labels-"


def open_images(
    source: ImageSource,
    *,
    num_workers: int,
    cache_directory: str | os.PathLike[str] | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> ImageStore:
    """Open the images for a loader.

    With `cache_directory`, decoded images are kept there in a memory-mapped file, also for later runs.
    Without, they are kept in memory up to `memory_bytes`, shared by all workers where the system has
    room for that; images beyond it are decoded every time.
    """
    table = source.table
    if cache_directory is not None and isinstance(source, FolderImages):
        require_apart(cache_directory, source.root)
    if cache_directory is not None or num_workers == 0:
        return ImageStore(source, memory_bytes=memory_bytes, cache_directory=cache_directory)
    needed = int((table.heights.astype(np.int64) * table.widths * 3).sum())
    if needed > memory_bytes or not _has_room(needed):
        return ImageStore(source, memory_bytes=memory_bytes // num_workers)
    return _shared_store(source)


def _has_room(needed: int) -> bool:
    """Whether images may take this much shared memory without crowding out others."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        return False
    sweep()
    return needed < shutil.disk_usage(SHARED_MEMORY).free // 2


def _shared_store(source: ImageSource) -> ImageStore:
    """Return a store in shared memory that goes when the last process that uses it has gone."""
    directory = SHARED_MEMORY / f"{_PREFIX}{uuid.uuid4().hex}"
    # Held by this process and, through fork, by its workers: whoever finds it free may clean up.
    lock = filelock.FileLock(f"{directory}.lock")
    lock.acquire()
    directory.mkdir()
    store = ImageStore(source, cache_directory=directory)
    weakref.finalize(store, _remove, directory, lock, os.getpid())
    return store


def _remove(directory: Path, lock: filelock.BaseFileLock, owner: int) -> None:
    # Workers made by fork have a copy of the store; only the process that made it cleans up.
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def sweep() -> None:
    """Remove what killed processes have left in shared memory."""
    for path in sorted(SHARED_MEMORY.glob(f"{_PREFIX}*.lock")):
        lock = filelock.FileLock(path)
        with contextlib.suppress(filelock.Timeout, OSError):
            lock.acquire(timeout=0)
            _remove(path.with_suffix(""), lock, os.getpid())
