"""Pools whose labels are wrong."""

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import zstandard
from pcodec import ChunkConfig, standalone

from tests.golden.crafting.cases import (
    Change,
    Stage,
    case,
    every,
    file,
    first,
    flipped,
    in_order,
    register,
    table,
)
from tests.golden.crafting.crafted import Crafted


def _blob(
    base: str, column: str, *rows: tuple[str, str, Callable[[Any], Any]], stage: Stage = "read"
) -> None:
    """Register a case for each (name, reason, change) of a column's first value."""
    for name, reason, change in rows:
        register((f"{base}-{name}", reason, _labels(column, first(change))), base=base, stage=stage)


def _labels(column: str, edit: Callable[[list[Any]], None], *, signed: bool = True) -> Change:
    """Change a payload column, then let the index point at where the pages lie now.

    signed: sign the digests of batches, too, where they can be taken of what is there now.
    """

    def change(pool: Crafted) -> None:
        pool.change("labels", column, edit)
        place_groups(pool)
        if signed and pool.signable:
            pool.sign_batches()

    return change


def place_groups(pool: Crafted) -> None:
    """Write the places of payload pages, all in one row group, into the index."""
    metadata = pq.read_metadata(io.BytesIO(pool.files[pool.path("labels")]))
    group = metadata.row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    payload = [c for c in chunks if c.path_in_schema not in ("epoch", "batch", "slot")]
    first = payload[0]
    start = (first.dictionary_page_offset if first.has_dictionary_page else None) or first.data_page_offset
    size = sum(chunk.total_compressed_size for chunk in payload)

    pool.change("batches", "group_offset", every(start))
    pool.change("batches", "group_bytes", every(size))
    shares = [size, *[0] * (len(pool.table("batches")) - 1)]
    pool.change("batches", "label_bytes", lambda values: values.__setitem__(slice(None), shares))


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


def _plain(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj(read_across_frames=True).decompress(data)


def _lies_about_size(frame: bytes) -> bytes:
    """Return the frame with a content size of 2^62 in its header."""
    descriptor = frame[4]
    assert descriptor & 0x20, "single-segment frames have the size right behind the descriptor"
    block = frame[5 + {0: 1, 1: 2, 2: 4, 3: 8}[descriptor >> 6] :]
    return frame[:4] + bytes([descriptor & 0x3F | 0xC0]) + struct.pack("<Q", 2**62) + block


_blob(
    "f16",
    "plane_0",
    ("zstd-size", "a zstd frame that claims 2^62 bytes", _lies_about_size),
    ("zstd-short", "a plane of a byte too few", lambda b: _zstd(_plain(b)[:-1])),
    ("zstd-long", "a plane of a byte too many", lambda b: _zstd(_plain(b) + b"\0")),
    ("zstd-trailing", "bytes after the zstd frame", lambda b: b + b"\0\0"),
    (
        "zstd-skippable",
        "a skippable frame before the zstd frame",
        lambda b: struct.pack("<II", 0x184D2A50, 4) + b"????" + b,
    ),
    ("zstd-empty", "a plane of no bytes", lambda b: b""),
    ("zstd-noise", "a plane that is no zstd frame", lambda b: bytes(reversed(b))),
)
_blob(
    "f16",
    "plane_1",
    ("nan", "labels that are NaN", lambda b: _zstd(b"\x7f" * len(_plain(b)))),
    stage="verify",
)
_blob(
    "klt",
    "band_0",
    ("pcodec-noise", "a band that is no pcodec file", lambda b: b[::-1]),
    ("pcodec-short", "a band of too few values", lambda b: _pco(1)),
    ("pcodec-bomb", "a band of a million equal values", lambda b: _pco(1_000_000)),
    ("pcodec-cut-off", "a band that ends early", lambda b: b[:-1]),
)


def _pco(count: int, dtype: type[np.generic] = np.int16) -> bytes:
    packed: bytes = standalone.simple_compress(np.zeros(count, dtype), ChunkConfig())
    return packed


def _planes(values: np.ndarray[Any, np.dtype[Any]]) -> bytes:
    raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(-1, values.dtype.itemsize)
    frames = [_zstd(raw[:, k].tobytes()) for k in range(values.dtype.itemsize)]
    return b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)


def _count(blob: bytes) -> int:
    """Return how many values byte planes hold: the content size of the first frame."""
    return int(zstandard.frame_content_size(blob[4:]))


def _gap_past_the_end(blob: bytes) -> bytes:
    return _planes(np.full(_count(blob), 65535, "<u2"))


def _floats(value: float, dtype: str) -> Callable[[bytes], bytes]:
    def change(blob: bytes) -> bytes:
        return _planes(np.full(_count(blob), value, dtype))

    return change


_blob("topk-3", "gaps", ("gaps", "classes that run past the last one", _gap_past_the_end))
_blob("topk-3", "values", ("values-inf", "a value that is infinite", _floats(np.inf, "<f2")))
_blob(
    "topk-3",
    "tail",
    ("tail-nan", "a tail that is NaN", _floats(np.nan, "<f4")),
    ("planes-left-over", "bytes after the byte planes of a blob", lambda b: b + b"\0"),
)
_blob("topk-3-8", "scale", ("scale-inf", "a scale that is infinite", _floats(np.inf, "<f2")))
_blob(
    "int8",
    "scale",
    ("scale-nan", "a scale that is NaN", lambda _: float("nan")),
    ("scale-negative", "a scale below 0", lambda _: -1.0),
)
_blob(
    "int4",  # its classes are an odd number
    "codes",
    ("left-over-bits", "left-over bits of the last byte are not 0", lambda b: b[:-1] + bytes([b[-1] | 0x80])),
)


@case("topk-3-order", "an order that is no permutation", base="topk-3", stage="read")
def _(pool: Crafted) -> None:
    rows, k = pool.manifest["batch_size"], pool.manifest["codec"]["parameters"]["k"]
    # Every entry of every row has rank 0.
    ranks = (np.zeros((rows, k)) - np.arange(k)) % 65536
    _labels("order", first(lambda _: _planes(ranks.astype("<u2"))))(pool)


def _written(**settings: Any) -> Change:
    return in_order(table("labels", **settings), place_groups)


def _first_label(value: np.floating[Any]) -> Change:
    return _labels("labels", first(lambda row: [value, *row[1:]]))


register(
    ("labels-no-checksum", "pages of the labels file have no CRC", _written(write_page_checksum=False)),
    ("labels-compressed", "payload is compressed by Parquet", _written(compression="zstd")),
    ("labels-dictionary", "payload is dictionary encoded", _written(use_dictionary=True)),
    base="f16",
    stage="read",
)
register(
    (
        "labels-keys",
        "key columns of the labels file are not those of the index",
        _labels("batch", first(lambda number: number + 1)),
    ),
    base="f16",
    stage="verify",
)
register(
    (
        "labels-other-values",
        "other labels than the batch digest says",
        _labels("labels", first(lambda row: [value + 1 for value in row]), signed=False),
    ),
    ("labels-nan", "a label that is NaN", _first_label(np.float16("nan"))),
    stage="verify",
)
register(
    ("labels-ragged", "a row with a label too few", _labels("labels", first(lambda row: row[:-1]))),
    stage="read",
)
register(("int8-overflow", "values beyond float32", _labels("scale", every(3e38))), base="int8", stage="read")
register(
    ("probability-negative", "a probability below 0", _first_label(np.float32(-0.25))),
    base="probabilities",
    stage="verify",
)


@case("labels-page-flipped", "a bit of a payload page is flipped", base="f16", stage="read")
def _(pool: Crafted) -> None:
    group = pool.table("batches").to_pylist()[0]
    end = group["group_offset"] + group["group_bytes"]
    file("labels", lambda data: flipped(data, end - 3))(pool)


@case("f16-codec-table", "a table of a codec that has none", base="f16")
def _(pool: Crafted) -> None:
    entry = {"path": "codec/mean.npy", "role": "codec", "bytes": 4, "rows": 0, "digest": "0" * 64}
    pool.files["codec/mean.npy"] = b"1234"
    pool.manifest["files"].append({**entry, "footer_bytes": None, "footer_digest": None})
    pool.sign()
