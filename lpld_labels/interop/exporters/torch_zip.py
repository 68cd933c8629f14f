"""Writing what `torch.load` reads, without torch: lists of tensors, numbers and None.

The pickle has only the instructions that the restricted unpickler of every PyTorch (weights_only)
allows, so such a file loads with plain ``torch.load(path)`` in old and new versions alike.
"""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import InvalidArgumentError

Array = npt.NDArray[Any]

STORAGES = {
    "f2": "HalfStorage",
    "f4": "FloatStorage",
    "f8": "DoubleStorage",
    "u1": "ByteStorage",
    "i2": "ShortStorage",
    "i4": "IntStorage",
    "i8": "LongStorage",
    "b1": "BoolStorage",
}
ALIGNMENT = 64
"""torch aligns the bytes of every tensor so that a file can be mapped into memory."""

_DATE = (1980, 1, 1, 0, 0, 0)
_EXTRA_TAG = b"FB"
_LOCAL_HEADER_BYTES = 30


def torch_zip_bytes(content: list[Any], *, name: str) -> bytes:
    """Return the file for a list of NumPy arrays (as tensors), floats, ints, None and such lists.

    name: folder inside the zip; torch uses the file's stem. Equal contents give equal bytes.
    """
    pickler = _Pickler()
    program = pickler.program(content)
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, f"{name}/data.pkl", program)
        _add(archive, f"{name}/byteorder", b"little")
        for key, array in enumerate(pickler.arrays):
            _add(archive, f"{name}/data/{key}", array.tobytes())
        _add(archive, f"{name}/version", b"3\n")
    return sink.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a member whose bytes start at a multiple of the alignment, padded by an extra field."""
    member = zipfile.ZipInfo(name, _DATE)
    offset = archive.fp.tell() if archive.fp is not None else 0
    start = offset + _LOCAL_HEADER_BYTES + len(name.encode()) + 4
    padding = -start % ALIGNMENT
    member.extra = _EXTRA_TAG + struct.pack("<H", padding) + b"Z" * padding
    archive.writestr(member, content)


class _Pickler:
    """Emits pickle protocol 2."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def program(self, content: list[Any]) -> bytes:
        return b"\x80\x02" + self._item(content) + b"."

    def _item(self, item: object) -> bytes:
        if item is None:
            return b"N"
        if isinstance(item, list):
            return b"](" + b"".join(self._item(part) for part in item) + b"e"
        if isinstance(item, float):
            return b"G" + struct.pack(">d", item)
        if isinstance(item, int) and not isinstance(item, bool):
            return _integer(item)
        if isinstance(item, np.ndarray):
            return self._tensor(item)
        raise InvalidArgumentError("cannot write this into a torch file", got=type(item).__name__)

    def _tensor(self, array: Array) -> bytes:
        """Call torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict())."""
        code = array.dtype.str[1:]
        if code not in STORAGES:
            raise InvalidArgumentError("cannot write arrays of this type", got=array.dtype)
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        key = str(len(self.arrays))
        self.arrays.append(array)
        strides = [step // array.itemsize for step in array.strides]
        return b"".join(
            [
                _name("torch._utils", "_rebuild_tensor_v2"),
                b"((",
                _text("storage"),
                _name("torch", STORAGES[code]),
                _text(key),
                _text("cpu"),
                _integer(array.size),
                b"tQ",
                _integer(0),
                _tuple(array.shape),
                _tuple(strides),
                b"\x89",
                _name("collections", "OrderedDict"),
                b")RtR",
            ]
        )


def _integer(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    raise InvalidArgumentError("number too large for a torch file", got=value)


def _text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _name(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _tuple(values: Any) -> bytes:
    return b"(" + b"".join(_integer(int(value)) for value in values) + b"t"
