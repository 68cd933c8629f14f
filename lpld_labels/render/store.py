"""Decoded images by index, in memory or in a file that processes share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import ImageMismatchError, InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.render.decoding import decode_image
from lpld_labels.render.image_folder import map_in_threads
from lpld_labels.render.image_source import ImageSource
from lpld_labels.render.pixel_file import PixelFile

Pixels = npt.NDArray[np.uint8]
MEMORY_BYTES = 4 * 1024**3


class ImageStore:
    """The images of a table as uint8 [H, W, 3], decoded when first asked for.

    source: where image files come from; every one that is read is known to be the labelled one.
    memory_bytes: how much to keep decoded in this process; the rest is decoded every time.
    cache_directory: keep all decoded images in a memory-mapped file there instead, filled once and
        shared by every process that gives the same directory (see pixel_file).

    Stores can be pickled (settings only; what is in memory stays behind) and survive fork. Threads
    may share one. The arrays are shared, so callers must not write into them.
    """

    def __init__(
        self,
        source: ImageSource,
        *,
        memory_bytes: int = MEMORY_BYTES,
        cache_directory: str | os.PathLike[str] | None = None,
    ) -> None:
        if memory_bytes < 0:
            raise InvalidArgumentError("memory_bytes is negative", expected="0 or more", got=memory_bytes)
        self.source = source
        self.table = table = source.table
        self._settings: dict[str, Any] = {"memory_bytes": memory_bytes, "cache_directory": cache_directory}
        self._file = None if cache_directory is None else PixelFile(Path(cache_directory), source)
        # Views take images evenly, so it does not matter which ones are kept; deciding it in advance
        # needs neither bookkeeping nor locks.
        ends = np.cumsum(table.heights.astype(np.int64) * table.widths * 3)
        self._keep: list[bool] = (ends <= memory_bytes).tolist()
        self._held: dict[int, Pixels] = {}

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Pixels:
        """Return image `index` as uint8 [H, W, 3]."""
        if self._file is not None:
            return self._file.get(index, self._decode)
        image = self._held.get(index)
        if image is None:
            image = self._decode(index)
            if self._keep[index]:
                self._held[index] = image
        return image

    def fill(self, *, indices: Sequence[int] | None = None, progress: Progress | None = None) -> None:
        """Decode ahead of use everything that will be kept, or some of it, in several threads.

        progress: called with (done, total). Fill before forking workers and they share the memory.
        """
        wanted = range(len(self)) if indices is None else indices
        kept = [index for index in wanted if self._file is not None or self._keep[index]]
        for done, _ in enumerate(map_in_threads(self.__getitem__, kept), 1):
            if progress is not None:
                progress(done, len(kept))

    def _decode(self, index: int) -> Pixels:
        where = self.source.place(index)
        image = decode_image(self.source.read(index), where=where)
        expected = (int(self.table.heights[index]), int(self.table.widths[index]))
        if image.shape[:2] != expected:
            raise ImageMismatchError(
                f"image {index} has another size than the labelled one",
                where=where,
                expected=f"{expected[1]} x {expected[0]}",
                got=f"{image.shape[1]} x {image.shape[0]}",
                hint="give the image folder that the pool was built from",
            )
        return image

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, **self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # one way to build a store, also after pickling
