"""Resize backends: the code that turns an integer crop into the pixels of a view.

Which one labelled a pool is recorded in its manifest (`Augmentation.resize`), because teachers see
the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from lpld_labels.errors import InvalidArgumentError

Pixels = npt.NDArray[np.uint8]
Resizer = Callable[[Pixels, Sequence[int], tuple[int, int]], torch.Tensor]
"""(image uint8 [H, W, 3], crop (top, left, height, width), output (height, width))
-> uint8 [1, 3, height, width], channels-last."""


def resize_torch(image: Pixels, crop: Sequence[int], size: tuple[int, int]) -> torch.Tensor:
    """Bilinear with antialias by PyTorch's uint8 channels-last kernel; one thread per image."""
    top, left, height, width = crop
    # The batch dimension comes from torch, not NumPy: it needs the largest stride to be channels-last,
    # and without that the kernel is three times slower.
    window = torch.from_numpy(image)[None, top : top + height, left : left + width].permute(0, 3, 1, 2)
    return torch.nn.functional.interpolate(window, size=size, mode="bilinear", antialias=True)


def resize_pil(image: Pixels, crop: Sequence[int], size: tuple[int, int]) -> torch.Tensor:
    """Bilinear by Pillow: crop first, then resize, as torchvision does with PIL images."""
    top, left, height, width = crop
    window = Image.fromarray(image[top : top + height, left : left + width])
    resized = window.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(resized))[None].permute(0, 3, 1, 2)


RESIZERS: dict[str, Resizer] = {"pil": resize_pil, "torch": resize_torch}


def find_resizer(name: str) -> Resizer:
    """Return a backend by the name that manifests record."""
    if name not in RESIZERS:
        raise InvalidArgumentError(
            "unknown resize backend",
            expected=f"one of {', '.join(RESIZERS)}",
            got=name,
            hint="upgrade lpld-labels if a newer version wrote this pool",
        )
    return RESIZERS[name]
