"""Views drawn from seed, augmentation, image table and key. The stream is that of the text, not NumPy's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .parquet import Row
from .views import CROP, CUTOUT, FILL, MIX_BOX

_M32, _M64, _M128 = 2**32 - 1, 2**64 - 1, 2**128 - 1
_H, _L = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
_TRIES = 10
Pair = Sequence[float]


def _hasher(constant: int, factor: int) -> Callable[[int], int]:
    """Return a hash of words whose constant changes with every call."""

    def hashed(value: int) -> int:
        nonlocal constant
        value ^= constant
        constant = constant * factor & _M32
        value = value * constant & _M32
        return value ^ value >> 16

    return hashed


def _mix(x: int, y: int) -> int:
    r = 0xCA01F9DD * x - 0x4973F715 * y & _M32
    return r ^ r >> 16


class Stream:
    """S(w0, w1, ...): draws in [0, 1)."""

    def __init__(self, *words: int) -> None:
        hashed = _hasher(0x43B0D7E5, 0x931E8875)
        pool = [hashed(word) for word in (*words, 0, 0, 0, 0)[:4]]
        for source in range(4):
            for target in range(4):
                if target != source:
                    pool[target] = _mix(pool[target], hashed(pool[source]))
        for word in words[4:]:
            pool = [_mix(value, hashed(word)) for value in pool]
        hashed = _hasher(0x8B51F9DD, 0x58F38DED)
        out = [hashed(pool[i % 4]) for i in range(8)]
        q = [out[2 * j] + (out[2 * j + 1] << 32) for j in range(4)]
        self._increment = 2 * ((q[2] << 64) + q[3]) + 1 & _M128
        self._state = 0
        self._step()
        self._state += (q[0] << 64) + q[1]
        self._step()

    def _step(self) -> None:
        self._state = self._state * 0x2360ED051FC65DA44385DF649FCCF645 + self._increment & _M128

    def draw(self) -> float:
        self._step()
        x = self._state >> 64 ^ self._state & _M64
        turn = self._state >> 122
        x = (x >> turn | x << 64 - turn) & _M64
        return (x >> 11) * 2.0**-53

    def draws(self, count: int) -> list[float]:
        return [self.draw() for _ in range(count)]

    def table(self, rows: int, columns: int) -> list[list[float]]:
        """Return rows of draws."""
        return [self.draws(columns) for _ in range(rows)]


def generator(seed: int, *places: int) -> Stream:
    """Return G(seed, a, b, ...)."""
    return Stream(len(places), seed % 2**32, seed // 2**32, *places)


def exp(x: float) -> float:
    """Return the exponential, in float64 operations that are each rounded."""
    k = round(x * 1.4426950408889634)
    r = (x - k * _H) - k * _L
    p = 1 / math.factorial(13)
    for n in range(12, -1, -1):
        p = p * r + 1 / math.factorial(n)
    return math.ldexp(p, k)


def log(x: float) -> float:
    """Return the natural logarithm, in float64 operations that are each rounded."""
    m, k = math.frexp(x)
    if m < 0.7071067811865476:
        m, k = 2 * m, k - 1
    s = (m - 1) / (m + 1)
    z = s * s
    p = 1 / 23
    for n in range(21, 0, -2):
        p = p * z + 1 / n
    return k * _H + (k * _L + (2 * s) * p)


def below(u: float, n: int) -> int:
    """Turn a draw into an integer below n."""
    return min(math.floor(u * n), n - 1)


def order(draws: Sequence[float]) -> list[int]:
    """Return the stable ascending argsort."""
    return sorted(range(len(draws)), key=draws.__getitem__)


def rank(seed: int, epoch: int, batch: int) -> int:
    """Return a batch's rank in random pruning."""

    def f(x: int) -> int:
        x = x + 0x9E3779B97F4A7C15 & _M64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _M64
        x = (x ^ x >> 27) * 0x94D049BB133111EB & _M64
        return x ^ x >> 31

    return f(f(f(seed) ^ epoch) ^ batch)


def batch_images(seed: int, epoch: int, batch: int, images: int, batch_size: int) -> list[int]:
    """Return the images of a batch."""
    return order(generator(seed, epoch).draws(images))[batch * batch_size : (batch + 1) * batch_size]


def draw_views(
    how: dict[str, Any],
    sizes: Sequence[tuple[int, int]],
    seed: int,
    key: tuple[int, int],
    batch_size: int,
    strength: float | None,
) -> list[Row]:
    """Draw a batch as rows of a views file. `sizes`: height and width of all images."""
    chosen = batch_images(seed, *key, len(sizes), batch_size)
    count, stream = len(chosen), generator(seed, *key)
    columns: dict[str, Sequence[Any]] = {"image": chosen, "slot": range(count)}
    if how["patch_grid"] is not None:
        columns["patch_order"] = [order(draws) for draws in stream.table(count, how["patch_grid"] ** 2)]
    columns |= _transposed(CROP, _crops(stream, [sizes[image] for image in chosen], how))
    flip = how["flip_probability"]
    columns["flip"] = [flip is not None and stream.draw() < flip for _ in range(count)]
    output = (how["output_height"], how["output_width"])
    if how["cutout_fraction"] is not None:
        sides = [max(1, round(size * how["cutout_fraction"])) for size in output]
        starts = [
            [below(draw, size) - side // 2 for draw, size, side in zip(draws, output, sides, strict=True)]
            for draws in stream.table(count, 2)
        ]
        columns |= _transposed(CUTOUT, [_box(start, sides, output) for start in starts])
        columns |= _transposed(FILL, [[below(u, 256) for u in draws] for draws in stream.table(count, 3)])
    if how["mix"] != "none":
        assert strength is not None
        stream.draws(2)  # of the strength, which the index has
        columns |= {"mix_slot": order(stream.draws(count)), "mix_strength": [strength] * count}
    if how["mix"] == "cutmix":
        assert strength is not None
        halves = [math.floor(size * math.sqrt(1 - strength)) // 2 for size in output]
        centres = [below(draw, size) for draw, size in zip(stream.draws(2), output, strict=True)]
        start = [centre - half for centre, half in zip(centres, halves, strict=True)]
        columns |= _transposed(MIX_BOX, [_box(start, [2 * half for half in halves], output)] * count)
    row = dict.fromkeys((*CROP, *CUTOUT, *FILL, *MIX_BOX, "mix_slot", "mix_strength", "patch_order"))
    row |= {"epoch": key[0], "batch": key[1]}
    return [row | {name: values[slot] for name, values in columns.items()} for slot in range(count)]


def _transposed(names: Sequence[str], rows: Sequence[Sequence[int]]) -> dict[str, Sequence[Any]]:
    return {name: [row[number] for row in rows] for number, name in enumerate(names)}


def _box(start: Sequence[int], sides: Sequence[int], output: Sequence[int]) -> list[int]:
    """Return top, left, bottom and right of a box, cut to the output."""
    ends = [min(low + side, size) for low, side, size in zip(start, sides, output, strict=True)]
    return [max(low, 0) for low in start] + ends


def _crops(stream: Stream, sizes: Sequence[tuple[int, int]], how: dict[str, Any]) -> list[list[int]]:
    if how["crop_scale"] is None:
        return [[0, 0, height, width] for height, width in sizes]
    ratio = how["crop_ratio"] or (3 / 4, 4 / 3)
    areas, ratios = stream.table(len(sizes), _TRIES), stream.table(len(sizes), _TRIES)
    places = stream.table(len(sizes), 2)
    draws = zip(sizes, areas, ratios, places, strict=True)
    return [_crop(size, how["crop_scale"], ratio, u, v, t) for size, u, v, t in draws]


def _crop(size: tuple[int, int], scale: Pair, ratio: Pair, u: Pair, v: Pair, t: Pair) -> list[int]:
    h, w = size
    a, b = log(ratio[0]), log(ratio[1])
    for first, second in zip(u, v, strict=True):
        area = (scale[0] + first * (scale[1] - scale[0])) * (h * w)
        aspect = exp(a + second * (b - a))
        height, width = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 1 <= height <= h and 1 <= width <= w:
            return [below(t[0], h - height + 1), below(t[1], w - width + 1), height, width]
    height, width = h, w
    if w / h < ratio[0]:
        height = min(max(round(w / ratio[0]), 1), h)
    elif w / h > ratio[1]:
        width = min(max(round(h * ratio[1]), 1), w)
    return [(h - height) // 2, (w - width) // 2, height, width]
