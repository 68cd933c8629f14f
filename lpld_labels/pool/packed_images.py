"""Read the image files that a pool carries, at random; each is verified against its digest."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from lpld_labels.errors import PoolCorruptError
from lpld_labels.format import arrow
from lpld_labels.format.digests import image_digest
from lpld_labels.format.limits import MAX_IMAGE_FILE_BYTES
from lpld_labels.format.manifest import FileEntry
from lpld_labels.format.schema import PACKED_SCHEMA
from lpld_labels.io.verified_parquet import VerifiedParquet
from lpld_labels.pool.block_cache import BlockCache
from lpld_labels.pool.reader import PoolReader

OPEN_FILES = 64
CACHE_BYTES = 8 * 1024 * 1024
"""Of row groups: neighbours in the table are neighbours in the file, and are often read together."""


class PackedImages:
    """The images of a pool that carries them, by row of its image table.

    Can be pickled and survives fork; threads may share one.
    """

    def __init__(self, pool: PoolReader) -> None:
        self.table = pool.images
        self._pool = pool
        self._entries = pool.manifest.files_of("packed")
        self._starts = np.cumsum([0, *(entry.rows for entry in self._entries)])
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._files: BlockCache[VerifiedParquet] = BlockCache(OPEN_FILES, lambda file: 1)
        self._groups: BlockCache[list[bytes]] = BlockCache(CACHE_BYTES, lambda group: sum(map(len, group)))

    def read(self, row: int) -> bytes:
        """Return one image file."""
        if self._process != os.getpid():
            self._begin()
        number = self._file_of(row)
        file = self._files.get(number, lambda: self._opened(number))
        group, place = file.group_of(row - int(self._starts[number]), 1)
        data = self._groups.get((number, group), lambda: _files_in(file, group))[place]
        problem = self._problem(row, data)
        if problem is not None:
            raise PoolCorruptError(problem, where=self.place(row), hint="restore this file")
        return data

    def place(self, row: int) -> str:
        """Return where an image is, for messages."""
        return f"{self._pool.location}/{self._entries[self._file_of(row)].path}, {self.table.paths[row]}"

    def problems(self, entry: FileEntry) -> Iterator[str]:
        """Yield what is wrong with a packed file; checks every row."""
        number = self._entries.index(entry)
        file, row = self._opened(number), int(self._starts[number])
        # No image is larger than its file.
        file.chunks(plain=("image.bytes",))
        for group in range(file.groups):
            table = file.read(group)
            stop = row + table.num_rows
            expected = {
                "row": list(range(row, stop)),
                "class": self.table.classes[row:stop].tolist(),
                "image.path": [path.encode() for path in self.table.paths[row:stop]],
            }
            found = {
                "row": arrow.integers(table["row"]),
                "class": arrow.integers(table["class"]),
                "image.path": arrow.raw_texts(arrow.field_of(table["image"], "path")),
            }
            for name, values in expected.items():
                if found[name] != values:
                    yield f"row group {group}: column '{name}' is not what the image table says"
            for place, data in enumerate(arrow.binaries(arrow.field_of(table["image"], "bytes"))):
                problem = self._problem(row + place, data)
                if problem is not None:
                    yield problem
            row = stop

    def _file_of(self, row: int) -> int:
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _opened(self, number: int) -> VerifiedParquet:
        return self._pool.open_parquet(self._entries[number], PACKED_SCHEMA)

    def _problem(self, row: int, data: bytes) -> str | None:
        if not 1 <= len(data) <= MAX_IMAGE_FILE_BYTES:
            return f"image {row} has {len(data)} bytes (expected 1 to {MAX_IMAGE_FILE_BYTES})"
        wanted = self.table.digests[row]
        if wanted is not None and image_digest(data) == wanted:
            return None
        known = "none" if wanted is None else f"{wanted.hex()[:12]}..."
        return f"image {row} is not the labelled one (expected digest {known})"

    def __getstate__(self) -> PoolReader:
        return self._pool

    def __setstate__(self, pool: PoolReader) -> None:
        self.__init__(pool)  # type: ignore[misc]  # one way to make one, also after pickling


def _files_in(file: VerifiedParquet, group: int) -> list[bytes]:
    return arrow.binaries(arrow.field_of(file.read(group, ["image"])["image"], "bytes"))


def packed_images(pool: PoolReader) -> PackedImages | None:
    """Return the images that a pool carries, or None if it does not."""
    return PackedImages(pool) if pool.manifest.files_of("packed") else None
