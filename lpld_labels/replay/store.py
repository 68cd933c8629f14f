"""Decoded images by index, kept in memory up to a limit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import ImageMismatchError
from lpld_labels.image_folder import decode_image, read_image_file
from lpld_labels.images import ImageTable

Pixels = npt.NDArray[np.uint8]
MEMORY_BYTES = 4 * 1024**3


class ImageStore:
    """The images of a table as uint8 [H, W, 3], decoded when first asked for.

    root: the image folder. memory_bytes: how much to keep decoded; the rest is decoded every time.
    Callers must not write into what they get. Stores can be pickled (without what they hold) and survive fork.
    """

    def __init__(
        self, root: str | os.PathLike[str], table: ImageTable, *, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self.root = Path(root)
        self.table = table
        self.memory_bytes = memory_bytes
        sizes = table.heights.astype(np.int64) * table.widths * 3
        # Views take images evenly, so which ones are kept does not matter; deciding it in advance
        # needs neither bookkeeping nor locks.
        self._keep = (np.cumsum(sizes) <= memory_bytes).tolist()
        self._held: dict[int, Pixels] = {}

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Pixels:
        """Return image `index` as uint8 [H, W, 3]."""
        held = self._held.get(index)
        if held is not None:
            return held
        image = self._decode(index)
        if self._keep[index]:
            self._held[index] = image
        return image

    def _decode(self, index: int) -> Pixels:
        where = self.root / self.table.paths[index]
        image = decode_image(read_image_file(self.root, self.table, index), where=where)
        expected = (int(self.table.heights[index]), int(self.table.widths[index]))
        if image.shape[:2] != expected:
            raise ImageMismatchError(
                f"image {index} has another size than the labelled one",
                where=where,
                expected=f"{expected[1]} x {expected[0]}",
                got=f"{image.shape[1]} x {image.shape[0]}",
            )
        return image

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "table": self.table, "memory_bytes": self.memory_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
