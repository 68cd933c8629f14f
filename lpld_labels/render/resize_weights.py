"""The integer weights of each resize code, as SPEC.md defines them. Does not import torch.

PyTorch and Pillow resize with antialiasing, first the columns, then the rows. Each output value is
(sum of weights x pixels + half) >> shift, clamped to 0..255, so equal weights give equal pixels everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import InvalidArgumentError

Floats = npt.NDArray[np.float64]


def _cubic(x: Floats) -> Floats:
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


_TRIANGLE = (lambda x: np.maximum(1.0 - x, 0.0), 1.0)
_KERNELS: dict[str, tuple[Callable[[Floats], Floats], float]] = {
    "pil": _TRIANGLE,
    "pil_bicubic": (_cubic, 2.0),
    "torch": _TRIANGLE,
}


def tap_count(code: str, side: int, out: int) -> int:
    """Return the maximum number of source pixels per output pixel."""
    if code not in _KERNELS:
        raise InvalidArgumentError(
            "views with this resize code cannot be rendered on a device",
            expected=f"one of {', '.join(_KERNELS)}",
            got=code,
            hint="use replay='cpu'",
        )
    return math.ceil(_KERNELS[code][1] * max(side / out, 1.0)) * 2 + 1


def resize_weights(
    code: str, side: int, out: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], int]:
    """Return each output pixel's first source pixel [out] and integer weights [out, taps], and a shift.

    shift: number of fractional bits of the weights, which are rounded from float64 as in ATen.
    """
    taps = tap_count(code, side, out)
    kernel, radius = _KERNELS[code]
    scale = side / out
    stretch = max(scale, 1.0)
    centre = (np.arange(out) + 0.5) * scale
    first = np.maximum((centre - radius * stretch + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + radius * stretch + 0.5).astype(np.int64), side)
    pixels = first[:, None] + np.arange(taps)
    values = kernel(np.abs((pixels - centre[:, None] + 0.5) * (1.0 / stretch)))
    values[pixels >= last[:, None]] = 0.0
    # cumsum adds from left to right; sum would add in a different order.
    values /= np.cumsum(values, axis=1)[:, -1:]
    shift = 22
    while code == "torch" and int(values.max() * 2.0**shift + 0.5) >= 1 << 15:
        shift -= 1  # PyTorch's weights have 16 bits.
    return first, np.trunc(values * 2.0**shift + np.copysign(0.5, values)).astype(np.int32), shift
