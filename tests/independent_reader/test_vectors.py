"""What can be tested without pools: streams, functions, encodings, blobs, names."""

from __future__ import annotations

import contextlib
import math
import struct

import numpy as np
import pytest
import zstandard

from .blobs import byte_planes, npy_vector, pcodec_int16, unzstd
from .codec_int import unpack_codes
from .decode import DecodeError, delta, hybrid
from .errors import Refused
from .names import check_image_path, check_role_path, folded
from .stream import Stream, exp, generator, log, order, rank
from .thrift import Compact, ThriftError
from .tiny_payloads import frame, npy, pco, planes, sized


@pytest.mark.parametrize("words", [(0,), (1, 2), (2**32 - 1, 0, 7, 9), (2, 5, 6, 7, 8), tuple(range(9))])
def test_stream_is_numpys(words: tuple[int, ...]) -> None:
    """The text's generator is NumPy's."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(list(words))))
    assert Stream(*words).draws(200) == rng.random(200).tolist()


def test_generator_places_words() -> None:
    """G puts the number of places and both halves of the seed first; draws go on where they stopped."""
    seed = 2**63 + 12345
    first = generator(seed, 3, 4)
    both = first.draws(3) + first.draws(4)
    assert both == Stream(2, seed % 2**32, seed >> 32, 3, 4).draws(7)


def test_elementary_functions() -> None:
    """The functions exp and log are within 2 ulp of the machine's."""
    rng = np.random.default_rng(1)
    for x in [*rng.uniform(-20, 20, 3000).tolist(), 0.0, 1.0, -1.0, math.log(0.75), math.log(4 / 3)]:
        assert abs(exp(x) - math.exp(x)) <= 2 * math.ulp(math.exp(x))
    for x in [*np.exp(rng.uniform(-20, 20, 3000)).tolist(), 1.0, 0.75, 4 / 3, 0.5, 2.0]:
        assert abs(log(x) - math.log(x)) <= 2 * math.ulp(math.log(x))
    assert exp(0.0) == 1.0
    assert log(1.0) == 0.0


def test_rank_and_order() -> None:
    """The rank's hash is SplitMix64; `order` is stable."""
    mask = np.uint64(0xFFFFFFFFFFFFFFFF)

    def mixed(x: int) -> int:
        """SplitMix64 with NumPy's wrapping integers."""
        with np.errstate(over="ignore"):
            z = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15) & mask
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int(z ^ (z >> np.uint64(31)))

    assert mixed(0) == 0xE220A8397B1DCDAF  # the published first output for seed 0
    assert rank(5, 6, 7) == mixed(mixed(mixed(5) ^ 6) ^ 7)
    assert rank(5, 6) == mixed(mixed(mixed(5) ^ 6) ^ 2**31)
    assert order([0.5, 0.1, 0.5, 0.0]) == [3, 1, 0, 2]


def test_codes() -> None:
    """Codes of 4 and 6 bits unpack from the least significant bit; left-over bits must be 0."""
    row = np.array([[0b11100001, 0b00001111]], np.uint8)
    assert unpack_codes(row, 4, 3, "f").tolist() == [[1, 14, 15]]
    assert unpack_codes(row[:, :], 6, 2, "f").tolist() == [[0b100001, 0b111111]]
    with pytest.raises(Refused):
        unpack_codes((row | 128).astype(np.uint8), 4, 3, "f")
    assert unpack_codes(row, 8, 2, "f").tolist() == [[225, 15]]


def test_byte_planes_and_frames() -> None:
    """Byte planes come back; frames of another size, cut, skippable, or with a tail are refused."""
    values = np.arange(12, dtype=np.uint32).reshape(3, 4) * 70000
    blob = planes(values)
    assert byte_planes(blob, "<u4", (3, 4), "f", "x").tolist() == values.tolist()
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    loose = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 12)
    good = frame(b"x" * 12)
    frames = (
        loose,
        good + b"\0",
        good[:-1],
        skippable + good,
        good + skippable,
        good + good,
        frame(b"x"),
        b"",
    )
    bad = (blob + b"\0", blob[:-1], skippable + blob, planes(values[:2]), b"", blob[4:], blob + blob)
    for data in (*bad, *(sized(wrong) + sized(good) * 3 for wrong in frames)):
        with pytest.raises(Refused):
            byte_planes(data, "<u4", (3, 4), "f", "x")
    assert byte_planes(sized(good) * 4, "<u4", (3, 4), "f", "x").tobytes() == b"x" * 48
    big = bytes(9 * 2**20)
    assert unzstd(frame(big), len(big), "f", "x") == big
    wide = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=30))
    assert unzstd(wide.compress(big), len(big), "f", "x") == big


def test_frame_that_lies() -> None:
    """A frame whose blocks hold more than its content size gives no more memory than that."""
    block = struct.pack("<I", (128 * 1024 << 3) | (1 << 1))[:3] + b"a"
    last = struct.pack("<I", (1 << 3) | (1 << 1) | 1)[:3] + b"a"
    bomb = b"\x28\xb5\x2f\xfd" + bytes([0x80, 0x48]) + struct.pack("<I", 1000) + block * 2000 + last
    with pytest.raises(Refused):
        unzstd(bomb, 1000, "f", "x")


def test_pcodec() -> None:
    """A pcodec blob has exactly its values, and no version that is not known."""
    values = np.arange(1000, dtype=np.int16) % 37
    blob = pco(values)
    assert pcodec_int16(blob, (10, 100), "f", "x").reshape(-1).tolist() == values.tolist()
    assert pcodec_int16(pco(values[:0]), (0, 100), "f", "x").shape == (0, 100)
    for data, shape in (
        (blob, (999,)),
        (blob, (1001,)),
        (blob[:-1], (1000,)),
        (blob[:4] + b"\4" + blob[5:], (1000,)),
    ):
        with pytest.raises(Refused):
            pcodec_int16(data, shape, "f", "x")
    for data in (pco(values.astype(np.uint16)), b"", blob[:9] + b"\xff" * 50):
        with pytest.raises(Refused):
            pcodec_int16(data, (1000,), "f", "x")


def test_npy() -> None:
    """Only npy version 1.0 of the one shape and type is taken."""
    values = np.arange(5, dtype=np.float32)
    assert npy_vector(npy(values), "<f4", 5, "f").tolist() == values.tolist()
    bad = (
        npy(values[:4]),
        npy(values.astype(">f4")),
        npy(values) + b"\0",
        npy(values.reshape(5, 1)),
        b"\x93NUMPY",
    )
    for data in (*bad, npy(values).replace(b"\x01\x00", b"\x02\x00", 1), npy(values)[:-1]):
        with pytest.raises(Refused):
            npy_vector(data, "<f4", 5, "f")


def test_names() -> None:
    """Paths of roles and of images."""
    assert check_role_path("labels/a-b_c.1.parquet", "labels", "f", "x") == "a-b_c.1"
    for path, role in (("labels/.a.parquet", "labels"), ("staging/a", "codec"), ("codec/../a", "codec"),
                       ("pool.json", "images"), ("views/a/b.parquet", "views"), ("codec/a\n", "codec"),
                       (f"codec/{'a' * 129}", "codec"), ("Images.parquet", "images")):  # fmt: skip
        with pytest.raises(Refused):
            check_role_path(path, role, "f", "x")
    assert folded("aBÄZ[@") == "abÄz[@"
    for path in ("a/ä b.png", "con1/x", "a..b/.c", "x" * 4096):
        check_image_path(path, "f", "x")
    for path in ("/a", "a//b", "a/", "", "./a", "a/../b", "a\\b", "c:a", "a/CoN", "nul.tar.gz", "lpt9.x/a",
                 "a\x1f", "\x7f", "ä" * 2049):  # fmt: skip
        with pytest.raises(Refused):
            check_image_path(path, "f", "x")


def test_thrift() -> None:
    """Structs parse; what runs past its end, repeats a field or nests deep is refused."""
    assert Compact(bytes([0x15, 0x04, 0x19, 0x25, 0x01, 0x03, 0x11, 0])).struct() == {
        1: 2,
        2: [-1, -2],
        3: True,
    }
    for data in (b"", b"\x15", b"\x18\x7f", b"\x19\xf5\xff\xff\xff\xff\x0f", b"\x1c" * 50,
                 b"\x15\x02\x05\x02\x02\x00",
                 b"\x15" + b"\xff" * 11, b"\x1d\x00"):  # fmt: skip
        with pytest.raises(ThriftError):
            Compact(data).struct()


def test_encodings_refuse_noise() -> None:
    """Noise gives values or DecodeError, nothing else."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        data = rng.integers(0, 256, int(rng.integers(0, 60))).astype(np.uint8).tobytes()
        for width in (0, 1, 3, 17, 32, 40):
            with contextlib.suppress(DecodeError):
                hybrid(data, 0, len(data), width, np.zeros(50, np.uint32))
        for head in (b"", b"\x80\x01\x04\x32"):
            with contextlib.suppress(DecodeError):
                assert len(delta(head + data, 0, len(head + data), 50, 32)[0]) == 50
