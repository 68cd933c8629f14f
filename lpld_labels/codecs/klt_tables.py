"""What a `klt` codec keeps once per pool: basis, scales of its vectors, and mean, as files."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.bands import Integers, pack_integers, unpack_integers
from lpld_labels.codecs.base import raw_bytes
from lpld_labels.errors import InvalidArgumentError, PoolCorruptError
from lpld_labels.format.limits import MAX_BASIS_VALUES

BASIS = "basis.pco"
SCALES = "scale.npy"
MEAN = "mean.npy"
_HEADER_START = 10
_NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<kind><f[24])', 'fortran_order': False, "
    rb"'shape': \((?P<count>[0-9]{1,12}),\), \} *\n",
    re.DOTALL,
)
"""The header is a Python literal; whoever evaluates it evaluates what a stranger wrote."""

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

    def __post_init__(self) -> None:
        if self.vectors.size > MAX_BASIS_VALUES:
            raise InvalidArgumentError(
                "codec 'klt' would need a larger basis than pools may have",
                expected=f"at most {MAX_BASIS_VALUES} numbers",
                got=f"{len(self.scales)} vectors of {self.classes} classes",
                hint="ask for less fidelity, or use codec 'int8'",
            )

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
        if len(scales) > len(mean) or len(scales) * len(mean) > MAX_BASIS_VALUES:
            raise PoolCorruptError(
                "codec table has the wrong length",
                where=SCALES,
                expected=f"at most {len(mean)} scales, of a basis of at most {MAX_BASIS_VALUES} numbers",
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
    kind = np.dtype(dtype).newbyteorder("<")
    header = _NPY_HEADER.match(data)
    if header is None or len(header[0]) != _HEADER_START + int.from_bytes(data[8:_HEADER_START], "little"):
        raise PoolCorruptError(
            "codec table is damaged: not npy of version 1.0 and one dimension, as NumPy writes it", where=name
        )
    start, count = len(header[0]), int(header["count"])
    if header["kind"].decode() != kind.str:
        raise PoolCorruptError(
            "codec table has the wrong type", where=name, expected=kind.str, got=header["kind"].decode()
        )
    if len(data) - start != count * kind.itemsize:
        raise PoolCorruptError(
            "codec table has the wrong length",
            where=name,
            expected=f"{count} values",
            got=f"{len(data) - start} bytes",
        )
    array = np.frombuffer(data, kind, offset=start)
    if not np.isfinite(array).all():
        raise PoolCorruptError("codec table is not finite", where=name, expected="finite values")
    return array
