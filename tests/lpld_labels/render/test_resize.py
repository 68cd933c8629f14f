"""Resizing is the integer arithmetic of SPEC.md, whichever Pillow and PyTorch are installed."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from lpld_labels.render.apply import RESIZERS

Pixels = npt.NDArray[np.uint8]


def triangle(x: float) -> float:
    return max(0.0, 1.0 - abs(x))


def cubic(x: float) -> float:
    x = abs(x)
    if x < 1:
        return (1.5 * x - 2.5) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2 else 0.0


FILTERS: dict[str, tuple[Callable[[float], float], float]] = {
    "pil": (triangle, 1.0),
    "pil_bicubic": (cubic, 2.0),
    "torch": (triangle, 1.0),
}


def resized_columns(pixels: Pixels, width: int, name: str) -> Pixels:
    """Return uint8 [H, width, 3]."""
    old = pixels.shape[1]
    kernel, radius = FILTERS[name]
    scale = old / width
    stretch = max(scale, 1.0)
    shares: list[tuple[int, list[float]]] = []
    for column in range(width):
        centre = (column + 0.5) * scale
        first = max(int(centre - radius * stretch + 0.5), 0)
        last = min(int(centre + radius * stretch + 0.5), old)
        weights = [kernel((x - centre + 0.5) * (1 / stretch)) for x in range(first, last)]
        total = 0.0
        for weight in weights:
            total += weight
        shares.append((first, [weight / total for weight in weights]))
    largest = max(max(weights) for _, weights in shares)
    bits = 22 if name != "torch" else max(q for q in range(23) if math.floor(largest * 2**q + 0.5) < 2**15)
    out = np.empty((pixels.shape[0], width, 3), np.uint8)
    for column, (first, weights) in enumerate(shares):
        # Half away from zero.
        whole = np.array([math.trunc(w * 2**bits + math.copysign(0.5, w)) for w in weights], np.int64)
        sums = np.tensordot(pixels[:, first : first + len(whole)].astype(np.int64), whole, axes=(1, 0))
        out[:, column] = np.clip((sums + 2 ** (bits - 1)) >> bits, 0, 255)
    return out


@pytest.mark.parametrize("name", FILTERS)
def test_pixels_are_those_of_the_specification(name: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(60):
        rows, columns, height, width = (int(side) for side in rng.integers(1, 90, 4))
        crop = rng.integers(0, 256, (rows, columns, 3), np.uint8)
        across = resized_columns(crop, width, name)
        expected = resized_columns(across.swapaxes(0, 1), height, name).swapaxes(0, 1)
        np.testing.assert_array_equal(RESIZERS[name](crop, height, width).numpy(), expected)
