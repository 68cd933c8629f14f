"""The stream of draws, the two elementary functions and the rank, from the text (no numpy.random)."""

from __future__ import annotations

import math

M32, M64, M128 = 2**32 - 1, 2**64 - 1, 2**128 - 1
_STEP = 0x2360ED051FC65DA44385DF649FCCF645
_H = float.fromhex("0x1.62e42feep-1")
_L = float.fromhex("0x1.a39ef35793c76p-33")
_INVERSE_FACTORIALS = [1.0 / math.factorial(n) for n in range(14)]


class _Hash:
    """The hash whose constant changes with every call."""

    def __init__(self, constant: int, factor: int) -> None:
        """Start with a constant."""
        self.constant = constant
        self.factor = factor

    def __call__(self, value: int) -> int:
        """Hash one word."""
        value ^= self.constant
        self.constant = self.constant * self.factor & M32
        value = value * self.constant & M32
        return value ^ value >> 16


def _mix(x: int, y: int) -> int:
    """Mix two words."""
    r = (0xCA01F9DD * x - 0x4973F715 * y) & M32
    return r ^ r >> 16


def _four_numbers(words: tuple[int, ...]) -> list[int]:
    """Turn words into the four 64-bit numbers that seed the generator."""
    hash_in = _Hash(0x43B0D7E5, 0x931E8875)
    pool = [hash_in(words[i] if i < len(words) else 0) for i in range(4)]
    for source in range(4):
        for target in range(4):
            if target != source:
                pool[target] = _mix(pool[target], hash_in(pool[source]))
    for word in words[4:]:
        for target in range(4):
            pool[target] = _mix(pool[target], hash_in(word))
    hash_out = _Hash(0x8B51F9DD, 0x58F38DED)
    out = [hash_out(pool[i % 4]) for i in range(8)]
    return [out[2 * j] + (out[2 * j + 1] << 32) for j in range(4)]


class Stream:
    """S(w0, w1, ...): a sequence of float64 in [0, 1)."""

    def __init__(self, *words: int) -> None:
        """Seed the generator."""
        q = _four_numbers(words)
        self._increment = (2 * ((q[2] << 64) + q[3]) + 1) & M128
        self._state = 0
        self._step()
        self._state = (self._state + (q[0] << 64) + q[1]) & M128
        self._step()

    def _step(self) -> None:
        """Advance the state."""
        self._state = (self._state * _STEP + self._increment) & M128

    def draws(self, count: int) -> list[float]:
        """Give the next draws."""
        out = []
        state, increment = self._state, self._increment
        for _ in range(count):
            state = (state * _STEP + increment) & M128
            x = (state >> 64) ^ (state & M64)
            turn = state >> 122
            x = (x >> turn | x << (64 - turn)) & M64
            out.append((x >> 11) * 2.0**-53)
        self._state = state
        return out


def generator(seed: int, *places: int) -> Stream:
    """G(seed, a, b, ...)."""
    return Stream(len(places), seed % 2**32, seed // 2**32, *places)


def exp(x: float) -> float:
    """Exponential in float64 operations, each rounded."""
    k = round(x * 1.4426950408889634)
    r = (x - k * _H) - k * _L
    p = _INVERSE_FACTORIALS[13]
    for n in range(12, -1, -1):
        p = p * r + _INVERSE_FACTORIALS[n]
    return math.ldexp(p, k)


def log(x: float) -> float:
    """Natural logarithm in float64 operations, each rounded."""
    m, k = math.frexp(x)
    if m < 0.7071067811865476:
        m, k = 2 * m, k - 1
    s = (m - 1) / (m + 1)
    z = s * s
    p = 1.0 / 23.0
    for n in range(21, 0, -2):
        p = p * z + 1.0 / n
    return k * _H + (k * _L + (2 * s) * p)


def below(u: float, n: int) -> int:
    """Turn a draw into an integer below n."""
    return min(math.floor(u * n), n - 1)


def order(draws: list[float]) -> list[int]:
    """Stable ascending argsort."""
    return sorted(range(len(draws)), key=draws.__getitem__)


def _finalise(x: int) -> int:
    """One step of the rank's hash."""
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & M64
    return x ^ (x >> 31)


def rank(seed: int, epoch: int, batch: int = 2**31) -> int:
    """Rank of a batch in random pruning; of a whole epoch where no batch is given."""
    return _finalise(_finalise(_finalise(seed) ^ epoch) ^ batch)
