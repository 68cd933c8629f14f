"""What a `klt` codec keeps once per pool: basis, scales of its vectors, and mean, as files."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from lpld_labels.codecs.bands import Integers, pack_integers, unpack_integers
from lpld_labels.codecs.base import raw_bytes
from lpld_labels.errors import PoolCorruptError

BASIS = "basis.pco"
SCALES = "scale.npy"
MEAN = "mean.npy"
MAX_BASIS = 1 << 28
"""Vectors times classes."""
_NPY_1_0 = b"\x93NUMPY\x01\x00"

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class KltTables:
    """A basis in few bits.

    vectors: int16 [L, C]; vector j of the basis is scales[j] * vectors[j]. scales: float32 [L].
    mean: float16 [C]. packed: the vectors as stored, where they were read from a pool.
    """

    vectors: Integers
    scales: FloatArray
    mean: npt.NDArray[np.float16]
    packed: bytes | None = None

    @property
    def classes(self) -> int:
        """Number of label columns C."""
        return len(self.mean)

    def basis(self) -> FloatArray:
        """Return float32 [L + 1, C]: the constant vector of length 1, then the scaled ones."""
        basis = np.empty((len(self.scales) + 1, self.classes), np.float32)
        basis[0] = 1 / np.sqrt(self.classes)
        np.multiply(self.vectors, self.scales[:, None], out=basis[1:])
        return basis

    def digest(self) -> bytes:
        """Return a SHA-256 over the numbers: another entropy coder may pack them otherwise."""
        parts = (self.vectors.astype("<i2"), self.scales.astype("<f4"), self.mean.astype("<f2"))
        return hashlib.sha256(b"".join(raw_bytes(part) for part in parts)).digest()

    def dump(self) -> dict[str, bytes]:
        """Return the tables as files."""
        packed = pack_integers(self.vectors) if self.packed is None else self.packed
        return {BASIS: packed, SCALES: _npy(self.scales), MEAN: _npy(self.mean)}

    @staticmethod
    def load(files: Mapping[str, bytes]) -> KltTables:
        """Read the files; what is missing, damaged or does not fit together is refused."""
        scales = _loaded(files, SCALES, np.float32)
        mean = _loaded(files, MEAN, np.float16)
        if len(scales) > len(mean) or len(scales) * len(mean) > MAX_BASIS:
            raise PoolCorruptError(
                "codec table has the wrong length",
                where=SCALES,
                expected=f"at most {len(mean)} scales, of a basis of at most {MAX_BASIS} numbers",
                got=len(scales),
            )
        packed = _file(files, BASIS)
        basis = unpack_integers(packed, (len(scales), len(mean)), where=BASIS)
        return KltTables(vectors=basis, scales=scales, mean=mean, packed=packed)


def _npy(array: npt.NDArray[Any]) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array.astype(array.dtype.newbyteorder("<")), allow_pickle=False)
    return sink.getvalue()


def _file(files: Mapping[str, bytes], name: str) -> bytes:
    if name not in files:
        raise PoolCorruptError("codec table is missing", where=name, hint="restore the pool's codec folder")
    return files[name]


def _loaded(files: Mapping[str, bytes], name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an npy table: version 1.0, one dimension, the dtype given, finite, and not a byte more."""
    data = _file(files, name)
    stream = io.BytesIO(data)
    if data[:8] != _NPY_1_0:
        raise PoolCorruptError("codec table is damaged: not npy of version 1.0", where=name)
    stream.seek(len(_NPY_1_0))
    try:
        shape, by_column, found = npy.read_array_header_1_0(stream)
    except (ValueError, EOFError, SyntaxError, TypeError) as error:
        raise PoolCorruptError(f"codec table is damaged: {error}", where=name) from None
    kind = np.dtype(dtype).newbyteorder("<")
    if len(shape) != 1 or by_column or found.str != kind.str:
        raise PoolCorruptError(
            "codec table has the wrong type", where=name, expected=f"{kind.str} [n]", got=f"{found} {shape}"
        )
    start = stream.tell()
    if len(data) - start != shape[0] * kind.itemsize:
        raise PoolCorruptError(
            "codec table has the wrong length",
            where=name,
            expected=f"{shape[0]} values",
            got=f"{len(data) - start} bytes",
        )
    array = np.frombuffer(data, kind, offset=start)
    if not np.isfinite(array).all():
        raise PoolCorruptError("codec table is not finite", where=name, expected="finite values")
    return array
