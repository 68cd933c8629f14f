"""Views drawn from seed, augmentation, image table and key. The stream is that of the text, not NumPy's."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .manifest import Row
from .tables import CROP, CUTOUT, FILL, MIX_BOX, Key

_M32, _M64, _M128 = 2**32 - 1, 2**64 - 1, 2**128 - 1
_H, _L = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
Sizes = Sequence[tuple[int, int]]
Draws = Sequence[float]


def _hasher(h: int, factor: int) -> Callable[[int], int]:
    """Return a hash of words whose constant `h` changes with every call."""

    def hashed(v: int) -> int:
        nonlocal h
        v ^= h
        h = (h * factor) & _M32
        v = (v * h) & _M32
        return v ^ (v >> 16)

    return hashed


def _mix(x: int, y: int) -> int:
    r = (0xCA01F9DD * x - 0x4973F715 * y) & _M32
    return r ^ (r >> 16)


def _stream(*words: int) -> Iterator[float]:
    """Yield the draws of S(w0, w1, ...)."""
    hashed = _hasher(0x43B0D7E5, 0x931E8875)
    p = [hashed(word) for word in (*words, 0, 0, 0, 0)[:4]]
    for source in range(4):
        for target in range(4):
            if target != source:
                p[target] = _mix(p[target], hashed(p[source]))
    for word in words[4:]:
        p = [_mix(value, hashed(word)) for value in p]
    hashed = _hasher(0x8B51F9DD, 0x58F38DED)
    o = [hashed(p[i % 4]) for i in range(8)]
    q = [o[2 * j] + (o[2 * j + 1] << 32) for j in range(4)]
    factor, c = 0x2360ED051FC65DA44385DF649FCCF645, 2 * ((q[2] << 64) + q[3]) + 1
    s = (c + (q[0] << 64) + q[1]) * factor + c
    while True:
        s = (s * factor + c) & _M128
        x, turn = (s >> 64) ^ (s & _M64), s >> 122
        x = ((x >> turn) | (x << (64 - turn))) & _M64
        yield (x >> 11) * 2.0**-53


def generator(seed: int, *places: int) -> Iterator[float]:
    return _stream(len(places), seed % 2**32, seed // 2**32, *places)


def take(stream: Iterator[float], count: int) -> list[float]:
    return [next(stream) for _ in range(count)]


def _table(stream: Iterator[float], rows: int, columns: int) -> list[list[float]]:
    return [take(stream, columns) for _ in range(rows)]


def exp(x: float) -> float:
    k = round(x * 1.4426950408889634)
    r = (x - k * _H) - k * _L
    p = 1 / math.factorial(13)
    for n in range(12, -1, -1):
        p = p * r + 1 / math.factorial(n)
    return math.ldexp(p, k)


def log(x: float) -> float:
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
    return min(math.floor(u * n), n - 1)


def order(draws: Draws) -> list[int]:
    return sorted(range(len(draws)), key=draws.__getitem__)


def draw_views(how: Row, sizes: Sizes, seed: int, key: Key, size: int, strength: float | None) -> list[Row]:
    """Draw a batch as rows of a views file. `sizes`: of all images; `size`: rows of a complete batch."""
    images = order(take(generator(seed, key[0]), len(sizes)))[key[1] * size :][:size]
    count, stream = len(images), generator(seed, *key)
    columns: dict[str, Sequence[Any]] = {"image": images, "slot": range(count)}
    if how["patch_grid"] is not None:
        columns["patch_order"] = [order(draws) for draws in _table(stream, count, how["patch_grid"] ** 2)]
    columns |= _columns(CROP, _crops(stream, [sizes[image] for image in images], how))
    flip = how["flip_probability"]
    columns["flip"] = [flip is not None and next(stream) < flip for _ in range(count)]
    output = (how["output_height"], how["output_width"])
    if how["cutout_fraction"] is not None:
        sides = [max(1, round(side * how["cutout_fraction"])) for side in output]
        columns |= _columns(CUTOUT, [_box(draws, sides, output) for draws in _table(stream, count, 2)])
        columns |= _columns(FILL, [[below(u, 256) for u in draws] for draws in _table(stream, count, 3)])
    if strength is not None:
        take(stream, 2)  # of the strength, which the index has
        columns |= {"mix_slot": order(take(stream, count)), "mix_strength": [strength] * count}
    if strength is not None and how["mix"] == "cutmix":
        sides = [math.floor(side * math.sqrt(1 - strength)) // 2 * 2 for side in output]
        columns |= _columns(MIX_BOX, [_box(take(stream, 2), sides, output)] * count)
    row: Row = dict.fromkeys((*CROP, *CUTOUT, *FILL, *MIX_BOX, "mix_slot", "mix_strength", "patch_order"))
    row |= {"epoch": key[0], "batch": key[1]}
    return [row | {name: values[slot] for name, values in columns.items()} for slot in range(count)]


def _columns(names: Sequence[str], rows: list[list[int]]) -> dict[str, Any]:
    return {name: [row[number] for row in rows] for number, name in enumerate(names)}


def _box(draws: Draws, sides: Sequence[int], output: Sequence[int]) -> list[int]:
    """Return top, left, bottom and right of a box around the point drawn, cut to the output."""
    starts = [below(u, size) - side // 2 for u, size, side in zip(draws, output, sides, strict=True)]
    ends = [min(low + side, size) for low, side, size in zip(starts, sides, output, strict=True)]
    return [max(low, 0) for low in starts] + ends


def _crops(stream: Iterator[float], sizes: Sizes, how: Row) -> list[list[int]]:
    if how["crop_scale"] is None:
        return [[0, 0, height, width] for height, width in sizes]
    ratio = how["crop_ratio"] or (3 / 4, 4 / 3)
    us, vs, ts = _table(stream, len(sizes), 10), _table(stream, len(sizes), 10), _table(stream, len(sizes), 2)
    drawn = zip(sizes, us, vs, ts, strict=True)
    return [_crop(size, how["crop_scale"], ratio, u, v, t) for size, u, v, t in drawn]


def _crop(size: tuple[int, int], scale: Draws, ratio: Draws, us: Draws, vs: Draws, t: Draws) -> list[int]:
    h, w = size
    low, high = ratio
    a, b = log(low), log(high)
    for u, v in zip(us, vs, strict=True):
        area = (scale[0] + u * (scale[1] - scale[0])) * (h * w)
        drawn = exp(a + v * (b - a))
        height, width = round(math.sqrt(area / drawn)), round(math.sqrt(area * drawn))
        if 1 <= height <= h and 1 <= width <= w:
            return [below(t[0], h - height + 1), below(t[1], w - width + 1), height, width]
    height = min(max(round(w / low), 1), h) if w / h < low else h
    width = min(max(round(h * high), 1), w) if w / h > high else w
    return [(h - height) // 2, (w - width) // 2, height, width]
