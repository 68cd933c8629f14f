"""Values, frames and arrays that no program of good faith would write."""

import os
import pickle
import random
import struct
from collections.abc import Callable

import zstandard

NUMBERS = (-1, 0, 1, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**400, -(2**70))
FLOATS = (0.0, -0.0, -1.0, 1e-320, 1e308, 1e400, float("nan"), float("inf"), float("-inf"), 0.5)
TEXTS = (
    "",
    "../../outside/canary",
    "/etc/passwd",
    "labels/../../outside/canary",
    "a\0b",
    "\ud800",
    "x" * 100_000,
    "con",
    "\u202e\u0000",
    "%s%n{0}",
)
_BOMB = zstandard.compress(bytes(256 << 20))
_UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(256 << 20))
"""A quarter of a gigabyte in some kilobytes, with and without saying so."""


def strange_value(draw: random.Random, old: object) -> object:
    kinds: list[Callable[[], object]] = [
        lambda: draw.choice(NUMBERS),
        lambda: draw.choice(FLOATS),
        lambda: draw.choice(TEXTS),
        lambda: draw.choice([None, True, False, [], {}]),
        lambda: [old] * draw.choice([0, 2, 1000]),
        lambda: {"old": old},
        lambda: _deep(draw.choice([10, 100, 900])),
    ]
    if isinstance(old, int):
        kinds.append(lambda: old + draw.choice([-1, 1, 1000]))
    if isinstance(old, str) and old:
        kinds.append(lambda: old[:-1] + draw.choice(["0", "/", "\0", ".."]))
    return draw.choice(kinds)()


def _deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def strange_frame(draw: random.Random) -> bytes:
    """Return bytes for a decompressor to stumble over."""
    frames = [
        _BOMB,
        _UNSIZED,
        zstandard.compress(b"x" * 100)[:-3],
        b"\x50\x2a\x4d\x18" + struct.pack("<I", 2**32 - 1),
        b"\x28\xb5\x2f\xfd\xe4" + b"\xff" * 20,
        zstandard.compress(b"a") * 1000,
        draw.randbytes(draw.randrange(200)),
        b"pco!" + draw.randbytes(40),
        b"",
    ]
    return draw.choice(frames)


def strange_npy(draw: random.Random) -> bytes:
    """Return an npy file that claims something strange."""
    kind = draw.choice(["<f4", "|O", "<f8", "<U100000000", "[('a','<f4')]", "<f4", "x" * 1000])
    shape = draw.choice(
        ["(3,)", "(1000000000000,)", "(3, 3)", "(-1,)", "()", "(" * 50 + "1", "3", "(3,)*10**9"]
    )
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header = header.ljust(draw.choice([118, 400]), draw.choice([b" ", b" ", b"("])) + b"\n"
    body = draw.choice([struct.pack("<3f", 1, 2, 3), b"", pickle.dumps(os.getcwd), bytes(4096)])
    version = draw.choice([b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00"])
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", len(header))
    return b"\x93NUMPY" + version + length + header + body
