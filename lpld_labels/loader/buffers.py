"""Memory for batches that is used again once nobody holds the batch any more.

Fresh memory is handed out by the kernel page by page at first touch, which for a batch of images costs
more than filling it.
"""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]


class BufferPool:
    """Blocks of memory that come back by themselves. Keeps at most `keep` free ones."""

    def __init__(self, *, keep: int = 2) -> None:
        self._keep = keep
        self._free: list[Bytes] = []

    def images(self, rows: int, height: int, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return an uninitialised [rows, 3, height, width] tensor in channels-last layout."""
        needed = rows * height * width * 3 * dtype.itemsize
        # NumPy asks the kernel for huge pages for large arrays, torch does not.
        block = self._free.pop() if self._free else np.empty(needed, np.uint8)
        if block.nbytes < needed:
            block = np.empty(needed, np.uint8)
        lent = block[:needed]
        # The tensor's storage holds `lent` and lets go of it with its last view, which ends the loan.
        weakref.finalize(lent, self._give_back, block).atexit = False
        pixels = torch.from_numpy(lent).view(dtype)
        return pixels.view(rows, height, width, 3).permute(0, 3, 1, 2)

    def _give_back(self, block: Bytes) -> None:
        if len(self._free) < self._keep:
            self._free.append(block)
