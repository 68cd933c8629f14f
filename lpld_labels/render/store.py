"""Decoded images by index, in memory or in a file that processes share."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import PIL
from isal import isal_zlib

from lpld_labels.errors import ImageMismatchError, InvalidArgumentError, PoolWriteError
from lpld_labels.format.images import ImageTable
from lpld_labels.io.storage import write_errors
from lpld_labels.pool.packing import ImageSource
from lpld_labels.render.decode import decode_image

Pixels = npt.NDArray[np.uint8]

MEMORY_BYTES = 4 * 1024**3
FORMAT = "lpld-labels pixels 3"
_FILLED = 1 << 32


class ImageStore:
    """The images of a table as uint8 [H, W, 3], decoded on first use. Callers must not write into them.

    memory_bytes: maximum size of decoded images in memory. Further images are decoded on every access.
    cache_directory: keep all decoded images in a file in this directory. Processes share the file. There is
    no file if the table has images without a digest.
    workers: number of worker processes that will read the store. On Linux they share one block of memory
    if all images fit into it; otherwise each process may use `memory_bytes` / `workers`.

    A store can be pickled (without its images). It survives fork. Threads may share it.
    """

    def __init__(
        self,
        source: ImageSource,
        *,
        memory_bytes: int = MEMORY_BYTES,
        cache_directory: str | os.PathLike[str] | None = None,
        workers: int = 0,
    ) -> None:
        if memory_bytes < 0:
            raise InvalidArgumentError("memory_bytes is negative", expected="0 or more", got=memory_bytes)
        self.source = source
        self._memory_bytes = memory_bytes // max(workers, 1)
        self._cache: Path | None = None
        if cache_directory is not None and None not in source.table.digests:
            self._cache = cache_file(Path(cache_directory), source.table)
        self._shared: SharedMemory | None = None
        needed = int(_ends(source.table)[-1])
        if self._cache is None and workers and needed <= min(memory_bytes, _available_memory() // 2):
            self._shared = SharedMemory(needed)
        self._open()

    def _open(self) -> None:
        self.table = self.source.table
        path = self._cache if self._shared is None else self._shared.path
        self._file = None if path is None else PixelFile(path, self.table)
        # Views show images equally often, so keeping the first images is as good as any other choice, and
        # needs neither bookkeeping nor locks.
        ends = _ends(self.table)
        self._keep: list[bool] = (ends[1:] - ends[0] <= self._memory_bytes).tolist()
        self._held: dict[int, Pixels] = {}

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Pixels:
        if self._file is not None:
            return self._file.get(index, self._decode)
        image = self._held.get(index)
        if image is None:
            image = self._decode(index)
            if self._keep[index]:
                self._held[index] = image
        return image

    def _decode(self, index: int) -> Pixels:
        where = self.source.place(index)
        image = decode_image(self.source.read(index), where=where)
        expected = (int(self.table.heights[index]), int(self.table.widths[index]))
        if image.shape[:2] != expected:
            raise ImageMismatchError(
                f"image {index} differs in size from the labelled image",
                where=where,
                expected=f"{expected[1]} x {expected[0]}",
                got=f"{image.shape[1]} x {image.shape[0]}",
                hint="give the image folder that the pool was built from",
            )
        return image

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("source", "_memory_bytes", "_cache", "_shared")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._shared is not None and not self._shared.is_there():
            self._shared = None
        self._open()


class SharedMemory:
    """An unnamed in-memory file; the system frees it when the last process closes it."""

    def __init__(self, size: int) -> None:
        self._name = f"lpld-images-{uuid.uuid4().hex}"
        handle = os.memfd_create(self._name)
        weakref.finalize(self, os.close, handle).atexit = False
        os.ftruncate(handle, size)
        self.path = Path(f"/proc/{os.getpid()}/fd/{handle}")

    def is_there(self) -> bool:
        """Return whether the process that created this memory still runs."""
        try:
            return self._name in str(self.path.readlink())
        except OSError:
            return False


class PixelFile:
    """Decoded images in one memory-mapped file that all processes of a machine share.

    Layout, little endian: one uint64 seal per image, then the pixels of all images in table order. A seal of
    0 means a missing image. Otherwise its low 32 bits are the pixels' CRC-32, which each process checks once.
    Processes write concurrently without locks: they write the same bytes, and an image with a torn write is
    decoded again. A process without write permission decodes missing images itself.
    """

    def __init__(self, path: Path, table: ImageTable) -> None:
        self._path = path
        self._shapes = np.stack([table.heights, table.widths], axis=1).tolist()
        self._starts = _ends(table).tolist()
        self._checked = bytearray(len(table))
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writable = os.access(path if path.exists() else path.parent, os.W_OK)
            if self._writable:
                _make_room(path, self._starts[-1])
            self._handle = os.open(path, os.O_RDWR if self._writable else os.O_RDONLY)
            weakref.finalize(self, os.close, self._handle).atexit = False
            if path.stat().st_size < self._starts[-1]:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            # The map is writable only because torch requires it. Nothing writes to the map.
            mode: Literal["r+", "c"] = "r+" if self._writable else "c"
            mapped = np.memmap(path, np.uint8, mode=mode, shape=(self._starts[-1],))
        self._bytes = np.asarray(mapped)
        self._seals = self._bytes[: 8 * len(table)].view("<u8")

    def get(self, index: int, decode: Callable[[int], Pixels]) -> Pixels:
        pixels: Pixels = self._bytes[self._starts[index] : self._starts[index + 1]]
        if not self._checked[index]:
            seal = int(self._seals[index])
            # Do not read missing pixels: reading would allocate memory for them.
            if not seal or seal != _FILLED | isal_zlib.crc32(pixels.data):
                image = decode(index)
                if self._writable:
                    self._write(index, image)
                return image
            self._checked[index] = 1
        height, width = self._shapes[index]
        return pixels.reshape(height, width, 3)

    def _write(self, index: int, image: Pixels) -> None:
        """Write pixels, then their seal. Use pwrite: writing to a map on a full disk kills the process."""
        seal = _FILLED | isal_zlib.crc32(image.data)
        with write_errors(self._path):
            for data, position in (
                (image.reshape(-1).data, self._starts[index]),
                (memoryview(seal.to_bytes(8, "little")), 8 * index),
            ):
                written = 0
                while written < len(data):
                    written += os.pwrite(self._handle, data[written:], position + written)


def cache_file(directory: Path, table: ImageTable) -> Path:
    """Return the cache file of these images. Its name hashes everything that the decoded pixels depend on."""
    # Pillow bundles a JPEG decoder, so a different release may decode to different pixels.
    state = hashlib.sha256(f"{FORMAT}\npillow {PIL.__version__}\n{table.digest().hex()}\n".encode())
    state.update(np.stack([table.heights, table.widths]).astype("<i4").tobytes())
    return directory / f"images-{state.hexdigest()[:32]}.pixels"


def _ends(table: ImageTable) -> npt.NDArray[np.int64]:
    """Return byte offsets in a pixel file, int64 [1 + N]: the end of the seals, then each image's end."""
    sizes = table.heights.astype(np.int64) * table.widths * 3
    return np.cumsum(np.concatenate([[8 * len(table)], sizes]))


def _make_room(path: Path, total: int) -> None:
    """Create the file and reserve its space; an existing file keeps its contents."""
    missing = total - (path.stat().st_size if path.exists() else 0)
    if missing <= 0:
        return
    free = shutil.disk_usage(path.parent).free
    if free < missing:
        raise PoolWriteError(
            "not enough space for the decoded images",
            where=path.parent,
            expected=f"{missing} bytes",
            got=f"{free} free",
            hint="choose another directory or keep decoded images in memory",
        )
    with path.open("ab") as file:
        try:
            # Reserve the space now: on a full disk, reading an unreserved page of the map kills the process.
            os.posix_fallocate(file.fileno(), 0, total)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            if os.fstat(file.fileno()).st_size < total:
                file.truncate(total)


def _available_memory() -> int:
    """Return the available memory in bytes, or 0 if the system has no in-memory files (memfd)."""
    if not hasattr(os, "memfd_create"):
        return 0
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
