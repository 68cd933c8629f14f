"""Entropy coding of integer coefficients: bands of similar spread, each coded on its own.

A band is a run of neighbouring coefficients. Its values for all rows of a batch, row by row, become
one standalone `pcodec` file (https://github.com/pcodec/pcodec), which holds its own statistics, so a
batch decodes without any other. pcodec is imported on first use: other codecs do without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import InvalidBatchError, LabelPoolError, PoolCorruptError

Integers = npt.NDArray[np.int16]

LEVEL = 8
"""pcodec's own default; level 12 gains nothing on these numbers, level 4 costs 6 %."""
SPREAD_RATIO = 2.0
"""A band ends where the spread has fallen by this ratio: fewer bands cost 2 %, more cost headers."""
SMALLEST_BAND = 1024
"""Values a band should have in a full batch, against about 25 bytes of headers."""
LARGEST = np.iinfo(np.int16).max


def band_edges(spreads: npt.NDArray[np.floating[Any]], rows: int) -> tuple[int, ...]:
    """Cut coefficients, given in order of falling spread [n], into bands for batches of `rows` rows.

    Returns edges (0, ..., n): band b holds coefficients edges[b] to edges[b + 1] - 1.
    """
    count = len(spreads)
    width = max(1, SMALLEST_BAND // max(rows, 1))
    edges = [0]
    for place in range(count):
        wide_enough = place - edges[-1] >= width and count - place >= width
        if wide_enough and spreads[edges[-1]] > SPREAD_RATIO * spreads[place]:
            edges.append(place)
    return (*edges, count) if count else (0,)


def pack_integers(values: npt.NDArray[np.floating[Any]] | Integers) -> bytes:
    """Return whole numbers of any shape, in row-major order, as one pcodec file of int16."""
    if values.size and np.abs(values).max() > LARGEST:
        raise InvalidBatchError(
            "label is far outside what the codec was fitted to",
            expected=f"coefficients of at most {LARGEST} steps",
            got=int(np.abs(values).max()),
            hint="check the teacher's output, or use codec 'f16'",
        )
    standalone, config = _pcodec()
    flat = np.ascontiguousarray(values, np.int16).reshape(-1)
    packed: bytes = standalone.simple_compress(flat, config)
    return packed


def unpack_integers(blob: bytes, shape: tuple[int, ...], *, where: str) -> Integers:
    """Undo `pack_integers`; never more values than the shape has."""
    values = np.empty(int(np.prod(shape)), np.int16)
    standalone, _ = _pcodec()
    try:
        progress = standalone.simple_decompress_into(blob, values)
    except RuntimeError as error:
        raise PoolCorruptError(f"label payload does not decompress: {error}", where=where) from None
    if progress.n_processed != values.size or not progress.finished:
        raise PoolCorruptError(
            "label payload has the wrong length",
            where=where,
            expected=f"{values.size} values",
            got=progress.n_processed if progress.finished else f"more than {values.size}",
        )
    return values.reshape(shape)


def pack_bands(values: npt.NDArray[np.floating[Any]], edges: Sequence[int]) -> list[bytes]:
    """Return one blob per band of whole numbers [rows, n]."""
    return [pack_integers(values[:, low:high]) for low, high in pairwise(edges)]


def unpack_bands(
    blobs: Sequence[bytes], edges: Sequence[int], rows: int, *, names: Sequence[str]
) -> Integers:
    """Undo `pack_bands`: int16 [rows, n]."""
    values = np.empty((rows, edges[-1]), np.int16)
    for blob, name, (low, high) in zip(blobs, names, pairwise(edges), strict=True):
        values[:, low:high] = unpack_integers(blob, (rows, high - low), where=name)
    return values


@cache
def _pcodec() -> tuple[Any, Any]:
    """Return pcodec's standalone module and the settings to compress with."""
    try:
        import pcodec
        from pcodec import standalone
    except ImportError:
        raise LabelPoolError(
            "codec 'klt' needs the package pcodec", hint="pip install 'pcodec>=1.0'"
        ) from None
    config = pcodec.ChunkConfig(
        compression_level=LEVEL,
        # Neighbouring coefficients are unrelated: differences and divisors have nothing to find.
        delta_spec=pcodec.DeltaSpec.no_op(),
        mode_spec=pcodec.ModeSpec.classic(),
    )
    return standalone, config
