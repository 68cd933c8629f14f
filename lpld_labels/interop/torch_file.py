"""Read and write files of `torch.save` without torch: a zip of one pickle and the bytes of each tensor.

    NAME/data.pkl      the object; tensors refer to their storage by key
    NAME/data/KEY      bytes of one storage, stored without compression
    NAME/byteorder     "little" or "big"; absent in older files, which are little-endian

Reading runs no code: opcodes are checked against an allow-list before the standard unpickler sees them, and
every global must be in a table of harmless replacements. Sizes are checked against the bytes present before
anything is allocated. Reading needs at most four times the file's size in memory, plus an allowance for
objects: 700 MB for files of a whole epoch or of image ids, 64 MB for others.
"""

from __future__ import annotations

import errno
import io
import math
import pickle
import pickletools
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import InvalidArgumentError, LabelFileError, UnsafePickleError
from lpld_labels.io.random_access import read_regular

Array = npt.NDArray[Any]

MAX_FILE_BYTES = 1 << 31  # A batch of 1024 rows of 10,450 float32 labels is 43 MB.


class Limits(NamedTuple):
    """Upper limits for one file.

    members: files in the zip. instructions: opcodes in the pickle. values: values in the pickle. A list
    counts each time it is referenced. An array counts as one value.
    """

    members: int
    instructions: int
    values: int


MAX_MEMBERS, MAX_INSTRUCTIONS, MAX_VALUES = ONE_BATCH = Limits(1000, 200_000, 100_000)
"""Label files have about ten members and a few hundred instructions."""
ONE_EPOCH = Limits(1 << 16, 1_500_000, 1_000_000)
"""ImageNet-1K with 50 images per class in batches of 16 needs 12,500 members and 570,000 instructions."""
ID_LISTS = Limits(1000, 1 << 22, 1 << 22)
"""A file has about one instruction per image id."""
MAX_DEPTH = 8  # Nesting of lists. Label files need two levels.
MAX_DIMENSIONS = 8
_SHOWN = 200  # Characters of a name shown in errors.
_KEY_LENGTH = 64
_PROGRAM = "/data.pkl"
_WANTED = re.compile(r"/data\.pkl$|/byteorder$|/data/")
_MEMBER_HEADER = b"PK\x01\x02"
_ENCRYPTED = 1

STORAGES: Mapping[str, np.dtype[Any]] = {
    "HalfStorage": np.dtype(np.float16),
    "FloatStorage": np.dtype(np.float32),
    "DoubleStorage": np.dtype(np.float64),
    "ByteStorage": np.dtype(np.uint8),
    "CharStorage": np.dtype(np.int8),
    "ShortStorage": np.dtype(np.int16),
    "IntStorage": np.dtype(np.int32),
    "LongStorage": np.dtype(np.int64),
    "BoolStorage": np.dtype(np.bool_),
}
_INSTRUCTIONS = frozenset(
    {"PROTO", "FRAME", "STOP", "MARK", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "BINPERSID"}
    | {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
    | {"BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"}
    | {"EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
    | {"BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"}
)
"""Allowed opcodes: no dictionaries, sets or buffers. Only calls of names in `_NAMES` create objects."""
_LIST_INSTRUCTIONS = frozenset(
    {"PROTO", "FRAME", "STOP", "MARK", "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS"}
    | {"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
)
"""Opcodes of a dictionary of lists. Keys cannot be made to collide: no large numbers or tuples."""


def read_id_lists(path: Path) -> dict[str, list[int]]:
    """Return a saved dictionary of lists of integers. Raises as `read_torch_file` does."""
    _, _, program = _parts(path, ID_LISTS)
    try:
        _check_instructions(program, path, ID_LISTS, _LIST_INSTRUCTIONS)
        saved = _Unpickler(program, {}, "", path).load()
    except _PICKLE_ERRORS as error:
        raise _damaged(path, f"damaged pickle: {str(error)[:_SHOWN]}") from None
    if not isinstance(saved, dict) or not all(
        isinstance(name, str) and isinstance(ids, list) and set(map(type, ids)) <= {int}
        for name, ids in saved.items()
    ):
        raise _damaged(path, "not lists of image ids", "a dictionary of lists of integers")
    return saved


def read_torch_file(path: Path, limits: Limits = ONE_BATCH) -> object:
    """Return the saved object: lists and tuples of numbers, None, and read-only NumPy arrays for tensors.

    Raises LabelFileError if the file is damaged or not a torch.save file, UnsafePickleError if it contains
    anything but data.
    """
    members, root, program = _parts(path, limits)
    try:
        _check_instructions(program, path, limits, _INSTRUCTIONS)
        saved = _Unpickler(program, members, root, path).load()
        return _plain(saved, MAX_DEPTH, {}, path, limits.values)[0]
    except _PICKLE_ERRORS as error:
        raise _damaged(path, f"damaged pickle: {str(error)[:_SHOWN]}") from None


def _parts(path: Path, limits: Limits) -> tuple[dict[str, bytes], str, bytes]:
    """Return the members of a torch.save file, the name of their folder, and the pickle."""
    try:
        data = read_regular(path, most=MAX_FILE_BYTES)
    except FileNotFoundError:
        raise LabelFileError("file is missing", where=path, hint="copy the folder again") from None
    except OSError as error:
        large = "too large for a label batch: " if error.errno == errno.EFBIG else ""
        raise LabelFileError(f"cannot read: {large}{error.strerror}", where=path) from None
    members = _members(data, path, limits.members)
    roots = [name.removesuffix(_PROGRAM) for name in members if name.endswith(_PROGRAM)]
    if len(roots) != 1 or "/" in roots[0]:
        raise _damaged(path, "not a torch.save file", "one NAME/data.pkl in the zip", len(roots))
    return members, roots[0], members[roots[0] + _PROGRAM]


def _damaged(where: Path, problem: str, expected: object = "", got: object = "") -> LabelFileError:
    return LabelFileError(problem, where=where, expected=expected, got=got, hint="restore this file")


_ODD_BYTES = (EOFError, OverflowError, RuntimeError, ValueError)
_ZIP_ERRORS = (*_ODD_BYTES, OSError, struct.error, zipfile.BadZipFile)  # From `zipfile`, for damaged files.
_PICKLE_ERRORS = (*_ODD_BYTES, AttributeError, LookupError, TypeError, pickle.UnpicklingError)


def _members(data: bytes, where: Path, most: int) -> dict[str, bytes]:
    """Return the members that are needed: name -> contents. `zipfile` verifies their checksums."""
    try:
        # Count members first: for each, `zipfile` allocates ten times the size of its directory entry.
        if data.count(_MEMBER_HEADER) > most:
            raise ValueError(f"it has more than {most} members")
        archive = zipfile.ZipFile(io.BytesIO(data))
        members = archive.infolist()
        if any(m.compress_type != zipfile.ZIP_STORED or m.flag_bits & _ENCRYPTED for m in members):
            raise ValueError("it is compressed or encrypted, which torch.save never does")
        if len(members) != len({member.filename for member in members}):
            raise ValueError("two members have the same name")
        if sum(max(member.file_size, member.compress_size) for member in members) > len(data):
            raise ValueError("its members overlap")
        wanted = [member for member in members if _WANTED.search(member.filename)]
        return {member.filename: archive.read(member) for member in wanted}
    except _ZIP_ERRORS as error:
        raise LabelFileError(
            f"not a complete torch.save file: {error}",
            where=where,
            expected="the zip form that PyTorch >= 1.6 writes",
            hint="restore this file; if an older PyTorch wrote it, load it and save it with a newer one",
        ) from None


def _refused(what: str, where: Path) -> UnsafePickleError:
    return UnsafePickleError(
        f"pickle contains {what}",
        where=where,
        expected="only tensors, numbers, lists and NumPy scalars",
        hint="none of its code was run; do not trust this file",
    )


def _check_instructions(program: bytes, where: Path, limits: Limits, allowed: frozenset[str]) -> None:
    """Refuse forbidden opcodes before any object is built.

    One byte can create an object of a hundred bytes, and five bytes can reserve 2**32 memo slots. So the
    number of opcodes and the memo size are limited, too.
    """
    for count, (instruction, argument, _) in enumerate(pickletools.genops(program), 1):
        if instruction.name not in allowed:
            raise _refused(f"the instruction {instruction.name}", where)
        if count > limits.instructions:
            raise ValueError(f"it has more than {limits.instructions} instructions")
        if instruction.name == "LONG_BINPUT" and int(argument or 0) > limits.instructions:
            raise ValueError(f"it has more than {limits.instructions} memo slots")


class _Unpickler(pickle.Unpickler):
    """The standard unpickler with a table of names instead of imports."""

    def __init__(self, program: bytes, members: Mapping[str, bytes], root: str, where: Path) -> None:
        super().__init__(io.BytesIO(program))
        self._members, self._root, self._where = members, root, where
        self._arrays: dict[str, Array] = {}
        self._encodable = len(program)
        order = members.get(f"{root}/byteorder", b"little")
        if order not in (b"little", b"big"):
            raise _damaged(where, "unknown byte order", "little or big", repr(order[:16]))
        self._order: Literal["<", ">"] = "<" if order == b"little" else ">"

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement of a global; nothing is ever imported."""
        text = f"{module}.{name}"
        if text == "_codecs.encode":
            return self._encode
        if text not in _NAMES:
            raise _refused(ascii(text[:_SHOWN]), self._where)
        return _NAMES[text]

    def persistent_load(self, identifier: object) -> Array:
        """Return a storage as a flat array; its id is ("storage", type, key, device, element count)."""
        match identifier:
            case ("storage", _StorageType(dtype=dtype), str(key), str(), int(count)):
                if len(key) > _KEY_LENGTH:
                    raise ValueError("the key of a tensor's storage is too long")
                if key not in self._arrays:
                    self._arrays[key] = self._storage(dtype, key, count)
                return self._arrays[key]
        raise ValueError("a tensor's storage id does not have torch's form")

    def _storage(self, dtype: np.dtype[Any], key: str, count: int) -> Array:
        content = self._members.get(f"{self._root}/data/{key}")
        if content is None:
            raise _damaged(self._where, "a member of the zip is missing", f"data/{key!a}")
        if len(content) != count * dtype.itemsize:
            expected = f"{count * dtype.itemsize} bytes"
            raise _damaged(self._where, f"storage {key!a} has the wrong size", expected, len(content))
        # Read booleans as bytes and convert them: bytes other than 0 and 1 are not valid booleans.
        kind = np.dtype(np.uint8) if dtype == np.bool_ else dtype.newbyteorder(self._order)
        stored: Array = np.frombuffer(content, kind)
        return stored.astype(dtype, copy=False)

    def _encode(self, text: object, encoding: object) -> bytes:
        """Return bytes that protocol 2 wrote as text. The number of bytes over all calls is limited."""
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise ValueError("bytes are not written as latin-1 text")
        self._encodable -= len(text)
        if self._encodable < 0:
            raise ValueError("it encodes more bytes than it contains")
        return text.encode("latin-1")


def _plain(
    item: Any, depth: int, known: dict[int, tuple[object, int]], where: Path, most: int
) -> tuple[object, int]:
    """Replace each `_Array` by a NumPy array; return the item and its number of values (see `Limits`)."""
    if id(item) in known:
        return known[id(item)]
    if depth == 0:
        raise ValueError(f"lists are nested more than {MAX_DEPTH} deep")
    result, values = item, 1
    if isinstance(item, list | tuple):
        parts = []
        for part in item:
            plain, count = _plain(part, depth - 1, known, where, most)
            parts.append(plain)
            values += count
            if values > most:
                raise ValueError(f"its lists expand to more than {most} values")
        result = type(item)(parts)
    elif isinstance(item, _Array):
        result = item.value()
    elif not isinstance(item, bool | int | float | str | bytes | np.generic | np.ndarray | None):
        raise _refused(f"the value {type(item).__name__.strip('_')}", where)
    known[id(item)] = result, values
    return result, values


# Replacements for the globals in a pickle. They have slots, so BUILD cannot set other attributes.


class _StorageType:
    """The dtype of a storage."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype


def _tensor(
    storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: object
) -> Array:
    """Return a tensor as a view of its storage, which must contain every element."""
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, np.ndarray) or set(map(type, numbers)) != {int} or min(numbers) < 0:
        raise ValueError("a tensor requires a storage and integers >= 0 as offset, shape and strides")
    if len(shape) != len(strides) or len(shape) > MAX_DIMENSIONS:
        raise ValueError("a tensor's shape and strides do not match, or have too many dimensions")
    count = math.prod(shape)
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if count > storage.size or (count and last >= storage.size):
        raise ValueError("a tensor reaches outside its storage")
    if count == 0:
        return np.empty(shape, storage.dtype)
    size = storage.itemsize
    view: Array = np.ndarray(shape, storage.dtype, storage.data, offset * size, [s * size for s in strides])
    view.flags.writeable = False
    return view


_SIMPLE = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")


class _Dtype:
    """A numeric dtype. The pickle sets the byte order through __setstate__."""

    __slots__ = ("dtype",)

    def __init__(self, code: str, *_: object) -> None:
        if not isinstance(code, str) or not _SIMPLE.fullmatch(code):
            shown = ascii(code[:20]) if isinstance(code, str) else f"of a {type(code).__name__}"
            raise ValueError(f"dtype {shown} is not a plain numeric dtype")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), "<" | ">" | "=" | "|" as order, None, None, None, *_):
                self.dtype = self.dtype.newbyteorder(order)
            case _:
                raise ValueError("dtype state is not that of a plain numeric dtype")


class _Array:
    """An array. The pickle sets shape, dtype and bytes through __setstate__."""

    __slots__ = ("_array",)

    def __init__(self, *_: object) -> None:
        self._array: Array | None = None

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple(shape), _Dtype(dtype=dtype), bool(fortran), bytes(content)):
                flat = np.frombuffer(content, dtype, len(content) // dtype.itemsize)
                self._array = flat.reshape(shape, order="F" if fortran else "C")
            case _:
                raise ValueError("array state is not (version, shape, dtype, order, bytes)")

    def value(self) -> Array:
        if self._array is None:
            raise ValueError("an array has no contents")
        return self._array


def _scalar(dtype: object, content: object) -> np.generic:
    if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
        raise TypeError("a scalar requires a dtype and bytes")
    if len(content) != dtype.dtype.itemsize:
        raise ValueError(f"a scalar of {dtype.dtype} has {len(content)} bytes")
    value: np.generic = np.frombuffer(content, dtype.dtype)[0]
    return value


_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NAMES: Mapping[str, Any] = {
    "torch._utils._rebuild_tensor_v2": _tensor,
    "collections.OrderedDict": lambda: None,  # The empty dictionary of hooks that every tensor has.
    "numpy.dtype": _Dtype,
    "numpy.ndarray": None,
    **{f"torch.{name}": _StorageType(dtype) for name, dtype in STORAGES.items()},
    **{f"{module}.scalar": _scalar for module in _MULTIARRAY},
    **{f"{module}._reconstruct": _Array for module in _MULTIARRAY},
}


ALIGNMENT = 64  # torch aligns tensors so that files can be memory-mapped.
_DATE = (1980, 1, 1, 0, 0, 0)
_EXTRA_TAG = b"FB"
_LOCAL_HEADER_BYTES = 30
_STORAGE_NAMES = {dtype: name for name, dtype in STORAGES.items()}


def torch_file_bytes(content: list[Any], *, name: str) -> bytes:
    """Return a torch.save file of nested lists of floats, ints, None and NumPy arrays (saved as tensors).

    name: name of the folder in the zip; torch uses the file's stem. Equal contents give equal bytes.
    PyTorch can load the file with weights_only=True.
    """
    arrays: list[Array] = []
    program = b"\x80\x02" + _pickled(content, arrays) + b"."
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, f"{name}/data.pkl", program)
        _add(archive, f"{name}/byteorder", b"little")
        for key, array in enumerate(arrays):
            _add(archive, f"{name}/data/{key}", array.tobytes())
        _add(archive, f"{name}/version", b"3\n")
    return sink.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a member, aligned by padding in an extra field."""
    member = zipfile.ZipInfo(name, _DATE)
    offset = archive.fp.tell() if archive.fp is not None else 0
    padding = -(offset + _LOCAL_HEADER_BYTES + len(name.encode()) + 4) % ALIGNMENT
    member.extra = _EXTRA_TAG + struct.pack("<H", padding) + b"Z" * padding
    archive.writestr(member, content)


def _pickled(item: object, arrays: list[Array]) -> bytes:
    """Return the opcodes that create an item (protocol 2), and append the item's arrays to `arrays`."""
    if isinstance(item, list):
        return b"](" + b"".join(_pickled(part, arrays) for part in item) + b"e"
    if isinstance(item, np.ndarray):
        return _pickled_tensor(item, arrays)
    if isinstance(item, float):
        return _instructions(float(item))  # NumPy floats are pickled differently.
    if item is None or (isinstance(item, int) and not isinstance(item, bool)):
        return _instructions(item)
    raise InvalidArgumentError("cannot write this type into a torch file", got=type(item).__name__)


def _pickled_tensor(array: Array, arrays: list[Array]) -> bytes:
    """Pickle a call of torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict())."""
    dtype = array.dtype.newbyteorder("=")
    if dtype not in _STORAGE_NAMES:
        raise InvalidArgumentError("cannot write arrays of this dtype", got=array.dtype)
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    key = str(len(arrays))
    arrays.append(array)
    strides = tuple(step // array.itemsize for step in array.strides)
    storage = _instructions("storage") + _global("torch", _STORAGE_NAMES[dtype])
    storage += _instructions(key) + _instructions("cpu") + _instructions(array.size)
    view = _instructions(0) + _instructions(array.shape) + _instructions(strides) + _instructions(False)
    hooks = _global("collections", "OrderedDict") + b")R"
    return _global("torch._utils", "_rebuild_tensor_v2") + b"((" + storage + b"tQ" + view + hooks + b"tR"


def _instructions(item: object) -> bytes:
    """Return the pickle of a plain value without header and STOP."""
    return pickle.dumps(item, 2)[2:-1]


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()
