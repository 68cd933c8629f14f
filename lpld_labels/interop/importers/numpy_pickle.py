"""The few names NumPy's own pickles use, as plain data: scalars of simple types and their arrays."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.interop.importers.pickle_data import Name

_SIMPLE = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")
_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")


class _Dtype:
    """A simple element type; its byte order comes as state."""

    def __init__(self, code: str, *_: object) -> None:
        if not isinstance(code, str) or not _SIMPLE.fullmatch(code):
            shown = repr(code[:20]) if isinstance(code, str) else f"of a {type(code).__name__}"
            raise ValueError(f"element type {shown} is not a plain number")
        self.dtype = np.dtype(code)

    def set_state(self, state: object) -> None:
        match state:
            case (int(), "<" | ">" | "=" | "|" as order, None, None, None, *_):
                self.dtype = self.dtype.newbyteorder(order)
            case _:
                raise ValueError("state of an element type is not that of a plain number")

    def value(self) -> object:
        raise ValueError("an element type stands where a value should")


class _Array:
    """An array; shape, element type and bytes come as state."""

    def __init__(self, *_: object) -> None:
        self._array: npt.NDArray[Any] | None = None

    def set_state(self, state: object) -> None:
        match state:
            case (int(), tuple(shape), _Dtype(dtype=dtype), bool(fortran), bytes(content)):
                count = len(content) // dtype.itemsize
                flat = np.frombuffer(content, dtype, count)
                self._array = flat.reshape(shape, order="F" if fortran else "C")
            case _:
                raise ValueError("state of an array is not shape, element type and bytes")

    def value(self) -> npt.NDArray[Any]:
        if self._array is None:
            raise ValueError("an array has no contents")
        return self._array


def _scalar(dtype: object, content: object) -> np.generic:
    if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
        raise TypeError("a scalar is an element type and bytes")
    if len(content) != dtype.dtype.itemsize:
        raise ValueError(f"a scalar of {dtype.dtype} has {len(content)} bytes")
    value: np.generic = np.frombuffer(content, dtype.dtype)[0]
    return value


class _Encoder:
    """Makes bytes that pickle protocol 2 wrote as text, one character per byte.

    A program may ask for the same text again and again, so what it gets in all is limited.
    """

    def __init__(self, limit: int) -> None:
        self._left = limit

    def __call__(self, text: object, encoding: object) -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise ValueError("bytes are not written as latin-1 text")
        self._left -= len(text)
        if self._left < 0:
            raise ValueError("it asks for more bytes than it holds")
        return text.encode("latin-1")


def numpy_names(program: bytes) -> dict[str, Name]:
    """Return the names that scalars and arrays of plain numbers need in one pickle."""
    names = [
        Name("numpy.dtype", _Dtype),
        Name("numpy.ndarray"),
        Name("_codecs.encode", _Encoder(limit=len(program))),
    ]
    for module in _MULTIARRAY:
        names += [Name(f"{module}.scalar", _scalar), Name(f"{module}._reconstruct", _Array)]
    return {name.text: name for name in names}
