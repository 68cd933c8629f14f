"""Resize backends: the code that turns an integer crop into the pixels of a view.

Which one labelled a pool is recorded in its manifest (`Augmentation.resize`), because teachers see
the difference.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from lpld_labels.errors import InvalidArgumentError

Pixels = npt.NDArray[np.uint8]
Resizer = Callable[[Pixels, int, int], torch.Tensor]
"""(crop uint8 [h, w, 3], output height, output width) -> uint8 [height, width, 3]."""


def resize_torch(crop: Pixels, height: int, width: int) -> torch.Tensor:
    """Bilinear with antialias by PyTorch's uint8 channels-last kernel; one thread per image."""
    # The batch dimension comes from torch, not NumPy: it needs the largest stride to be channels-last,
    # and without that the kernel is three times slower.
    source = torch.from_numpy(crop)[None].permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(source, size=(height, width), mode="bilinear", antialias=True)
    return resized[0].permute(1, 2, 0)


def resize_pil(crop: Pixels, height: int, width: int) -> torch.Tensor:
    """Bilinear by Pillow, on the crop alone, as torchvision does with PIL images."""
    resized = Image.fromarray(crop).resize((width, height), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(resized))


def resize_pil_bicubic(crop: Pixels, height: int, width: int) -> torch.Tensor:
    """Bicubic by Pillow: what FKD's labelling program uses."""
    resized = Image.fromarray(crop).resize((width, height), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(resized))


# By the names of `RESIZE_CODES`.
RESIZERS: dict[str, Resizer] = {
    "pil": resize_pil,
    "pil_bicubic": resize_pil_bicubic,
    "torch": resize_torch,
}


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
