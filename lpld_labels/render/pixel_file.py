"""A memory-mapped file of decoded images, filled as they are first asked for.

Layout, little endian: a header (magic, key), one uint64 seal per image, then from the next page on
the images' pixels back to back in table order. A seal of 0 means not there yet; otherwise its low
32 bits are the CRC-32 of the pixels, which each process checks once before it trusts them. So any
number of processes may fill the same file at the same time without locks: they write the same
bytes, and a torn write or a crash in the middle is noticed and done again.

The file's name carries the key, which covers the contents of all images: a file made from other
images is never opened.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import mmap
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL
from isal import isal_zlib

from lpld_labels.errors import PoolWriteError
from lpld_labels.io.storage import write_errors
from lpld_labels.render.image_source import ImageSource

Pixels = npt.NDArray[np.uint8]

MAGIC = b"lpld-labels pixels 2\n"
"""Version 2: samples of 16 bits are scaled."""
_FILLED = 1 << 32
_PAGE = 4096

log = logging.getLogger(__name__)


def pixel_key(images: ImageSource) -> str:
    """Return the hex digest of everything that decides the decoded pixels.

    Images whose contents the table does not know count by path, size and time of change.
    """
    table = images.table
    state = hashlib.sha256(MAGIC)
    # Pillow brings its own JPEG decoder, so another release may decode to other pixels.
    state.update(f"pillow {PIL.__version__}\n{table.digest().hex()}\n".encode())
    state.update(np.stack([table.heights, table.widths]).astype("<i4").tobytes())
    for row, digest in enumerate(table.digests):
        if digest is None and (stamp := images.stamp(row)):
            state.update(f"{stamp}\n".encode())
    return state.hexdigest()


class PixelFile:
    """Decoded images in one file that all processes of a machine share.

    directory: where the file is or will be; made when it is not there.
    Processes that may not write the file use what it holds and decode the rest.
    """

    def __init__(self, directory: Path, images: ImageSource) -> None:
        table, key = images.table, pixel_key(images)
        self.path = directory / f"images-{key[:32]}.pixels"
        self._header = MAGIC + key.encode()
        self._shapes = np.stack([table.heights, table.widths], axis=1).tolist()
        self._seals_start = _round_up(len(self._header), 8)
        first = _round_up(self._seals_start + 8 * len(table), _PAGE)
        sizes = table.heights.astype(np.int64) * table.widths * 3
        self._starts = (first + np.concatenate([[0], np.cumsum(sizes)])).tolist()
        self._trusted = bytearray(len(table))
        with write_errors(self.path):
            if not self._is_whole():
                self._create()
            self._map()

    def get(self, index: int, decode: Callable[[int], Pixels]) -> Pixels:
        """Return image `index` as uint8 [H, W, 3], decoding and keeping it if it is not there."""
        start, end = self._starts[index], self._starts[index + 1]
        pixels: Pixels = self._bytes[start:end]
        if not self._trusted[index]:
            seal = int(self._seals[index])
            # Pixels that are not there yet are not looked at: in memory, looking would make room for them.
            if not seal or seal != _FILLED | isal_zlib.crc32(pixels.data):
                image = decode(index)
                if self._writable:
                    self._write(index, image)
                return image
            self._trusted[index] = 1
        height, width = self._shapes[index]
        return pixels.reshape(height, width, 3)

    def _write(self, index: int, image: Pixels) -> None:
        """Write the pixels, then their seal: whoever sees the seal checks it against the pixels.

        Written through the file and not the map: a full disk is then an error, not a signal that
        ends the process.
        """
        seal = _FILLED | isal_zlib.crc32(image.data)
        with write_errors(self.path), self.path.open("r+b", buffering=0) as stream:
            for data, position in (
                (image.reshape(-1).data, self._starts[index]),
                (memoryview(seal.to_bytes(8, "little")), self._seals_start + 8 * index),
            ):
                written = 0
                while written < len(data):
                    written += os.pwrite(stream.fileno(), data[written:], position + written)

    def _is_whole(self) -> bool:
        """Whether the file is there with the right header and length."""
        try:
            with self.path.open("rb") as stream:
                header = stream.read(len(self._header))
                return header == self._header and os.fstat(stream.fileno()).st_size == self._starts[-1]
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _create(self) -> None:
        """Put an empty file in place in one step; of several processes one wins and all use its file."""
        total = self._starts[-1]
        temporary = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.path.parent).free
        if free < total:
            raise PoolWriteError(
                "not enough space for the decoded images",
                where=self.path.parent,
                expected=f"{total} bytes",
                got=f"{free} free",
                hint="choose another directory or keep decoded images in memory",
            )
        try:
            with temporary.open("xb") as stream:
                stream.write(self._header)
                stream.truncate(total)
                _reserve(stream.fileno(), total)
            self._publish(temporary)
        finally:
            temporary.unlink(missing_ok=True)
        log.debug("made %s for %d images", self.path, len(self._shapes))

    def _publish(self, temporary: Path) -> None:
        # A file of this name that is not whole was cut short, by a copy for instance: replace it.
        if not self.path.exists():
            with contextlib.suppress(FileExistsError):
                self.path.hardlink_to(temporary)
        # Another process may have made it since this one looked, and others have it open.
        if not self._is_whole():
            temporary.replace(self.path)

    def _map(self) -> None:
        """Map the file. The map is writable only because torch insists; nothing writes to it."""
        self._writable = os.access(self.path, os.W_OK)
        with self.path.open("r+b" if self._writable else "rb") as stream:
            access = mmap.ACCESS_WRITE if self._writable else mmap.ACCESS_COPY
            mapped = mmap.mmap(stream.fileno(), 0, access=access)
        self._bytes = np.frombuffer(mapped, np.uint8)
        self._seals = np.frombuffer(mapped, "<u8", count=len(self._trusted), offset=self._seals_start)


def _reserve(handle: int, total: int) -> None:
    """Take the room at once: where others take it meanwhile, a page of the map would end the process."""
    try:
        os.posix_fallocate(handle, 0, total)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
