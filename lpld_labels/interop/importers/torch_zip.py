"""Files of `torch.save` without torch: a zip of one pickle and the bytes of each tensor.

    NAME/data.pkl      the object; tensors refer to their storage by key
    NAME/data/KEY      bytes of one storage, stored without compression
    NAME/byteorder     "little" or "big"; absent in older files, which are little

Sizes in a file are claims. Every claim is checked against the bytes that are there before anything
is allocated. Reading a file takes at most four times its length (text is held as characters, and a storage
may be turned into another byte order) and 64 MB for the objects of its pickle.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from lpld_labels.errors import LabelFileError
from lpld_labels.interop.importers.numpy_pickle import numpy_names
from lpld_labels.interop.importers.pickle_data import Name, PickleReader
from lpld_labels.interop.importers.zip_directory import Member, member_bytes, read_directory
from lpld_labels.io.regular_file import read_regular

Array = npt.NDArray[Any]

MAX_FILE_BYTES = 1 << 31
"""A batch of 1024 rows of 10,450 float32 labels is 43 MB; nothing near 2 GiB is a label batch."""
MAX_DIMENSIONS = 8
PROGRAM = "/data.pkl"
_KEY_LENGTH = 64

STORAGE_DTYPES: Mapping[str, np.dtype[Any]] = {
    "torch.HalfStorage": np.dtype(np.float16),
    "torch.FloatStorage": np.dtype(np.float32),
    "torch.DoubleStorage": np.dtype(np.float64),
    "torch.ByteStorage": np.dtype(np.uint8),
    "torch.CharStorage": np.dtype(np.int8),
    "torch.ShortStorage": np.dtype(np.int16),
    "torch.IntStorage": np.dtype(np.int32),
    "torch.LongStorage": np.dtype(np.int64),
    "torch.BoolStorage": np.dtype(np.bool_),
}
_STORAGE_NAMES = {text: Name(text) for text in STORAGE_DTYPES}


def read_torch_zip(path: Path) -> object:
    """Return what was saved: lists and tuples of numbers, None, and NumPy arrays for tensors.

    Arrays are read-only views of the file's bytes. Raises LabelFileError for a file that is damaged or
    not of this kind, UnsafePickleError for one that asks for anything but data.
    """
    try:
        data = read_regular(path, most=MAX_FILE_BYTES)
    except FileNotFoundError:
        raise LabelFileError("file is missing", where=path, hint="copy the folder again") from None
    except OSError as error:
        large = "too large for a label batch: " if error.errno == errno.EFBIG else ""
        raise LabelFileError(f"cannot read: {large}{error.strerror}", where=path) from None
    return _SavedObject(data, where=str(path)).read()


class _SavedObject:
    """One file, taken apart."""

    def __init__(self, data: bytes, *, where: str) -> None:
        self._data = data
        self._where = where
        self._members = self._directory()
        self._root = self._find_root()
        self._order = self._byte_order()
        self._storages: dict[str, Array] = {}

    def read(self) -> object:
        program = bytes(self._bytes(self._root + PROGRAM))
        names = {
            **_STORAGE_NAMES,
            "torch._utils._rebuild_tensor_v2": Name("torch._utils._rebuild_tensor_v2", self._tensor),
            "collections.OrderedDict": Name("collections.OrderedDict", _no_hooks),
            **numpy_names(program),
        }
        return PickleReader(program, names=names, persistent=self._storage, where=self._where).read()

    def _error(self, problem: str, expected: object = "", got: object = "") -> LabelFileError:
        return LabelFileError(
            problem, where=self._where, expected=expected, got=got, hint="restore this file"
        )

    def _directory(self) -> dict[str, Member]:
        try:
            return read_directory(self._data)
        except ValueError as error:
            raise LabelFileError(
                f"not a whole file of torch.save: {error}",
                where=self._where,
                expected="the zip form that PyTorch >= 1.6 writes",
                hint="restore this file; a file of an older PyTorch must be loaded and saved again",
            ) from None

    def _find_root(self) -> str:
        roots = [name[: -len(PROGRAM)] for name in self._members if name.endswith(PROGRAM)]
        if len(roots) != 1 or "/" in roots[0]:
            raise self._error("not a file of torch.save", "one NAME/data.pkl in the zip", len(roots))
        return roots[0]

    def _byte_order(self) -> Literal["<", ">"]:
        name = f"{self._root}/byteorder"
        if name not in self._members:
            return "<"
        order = bytes(self._bytes(name))
        if order not in (b"little", b"big"):
            raise self._error("unknown byte order", "little or big", repr(order[:16]))
        return "<" if order == b"little" else ">"

    def _bytes(self, name: str) -> memoryview:
        """Return the bytes of a member, known to be those that were written."""
        member = self._members.get(name)
        if member is None:
            raise self._error("a member of the zip is missing", repr(name))
        try:
            content = member_bytes(self._data, member)
        except ValueError as error:
            raise self._error(f"damaged zip: {error}", repr(name)) from None
        if isal_zlib.crc32(content) != member.crc:
            raise self._error("damaged file: checksum of a member does not match", repr(name))
        return content

    def _storage(self, identifier: object) -> Array:
        """Return a storage as a flat array; its id is ("storage", type, key, device, element count)."""
        match identifier:
            case ("storage", Name(text=kind), str(key), str(), int(count)) if (
                kind in STORAGE_DTYPES and len(key) <= _KEY_LENGTH
            ):
                pass
            case _:
                raise self._error("damaged pickle: a tensor's storage is not named as torch does")
        name = f"{self._root}/data/{key}"
        if name not in self._storages:
            dtype = STORAGE_DTYPES[kind]
            content = self._bytes(name)
            if len(content) != count * dtype.itemsize:
                raise self._error(
                    f"storage {key} has the wrong size", f"{count * dtype.itemsize} bytes", len(content)
                )
            if dtype == np.bool_:
                # Bytes that are neither 0 nor 1 would be booleans that are neither true nor false.
                self._storages[name] = np.frombuffer(content, np.uint8) != 0
            else:
                stored = np.frombuffer(content, dtype.newbyteorder(self._order))
                self._storages[name] = stored.astype(dtype, copy=False)
        return self._storages[name]

    def _tensor(
        self, storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: object
    ) -> Array:
        """Return a tensor as a view of its storage, once every element is known to lie inside."""
        numbers = (offset, *shape, *strides)
        if not isinstance(storage, np.ndarray) or set(map(type, numbers)) != {int} or min(numbers) < 0:
            raise ValueError("a tensor's shape is not made of numbers >= 0")
        if len(shape) != len(strides) or len(shape) > MAX_DIMENSIONS:
            raise ValueError("a tensor's shape and strides do not fit each other")
        count = math.prod(shape)
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if count > storage.size or (count and last >= storage.size):
            raise ValueError("a tensor reaches outside its storage")
        if count == 0:
            return np.empty(shape, storage.dtype)
        size = storage.itemsize
        view: Array = np.ndarray(
            shape, storage.dtype, storage.data, offset * size, [s * size for s in strides]
        )
        view.flags.writeable = False
        return view


def _no_hooks() -> None:
    """Stand for the empty dictionary of hooks that every tensor carries."""
